// Takes a compiler a lot of work.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <regex>
#include <string>
#include <unordered_map>
#include <vector>
template <int N> struct Row {
    std::map<std::string, std::vector<Row<N - 1>>> rows;
    std::function<int(int)> next = [this](int at) { return at + int(rows.size()) + N; };
    int sum() const {
        int all = N;
        for (auto& [name, inner] : rows) for (auto& row : inner) all += row.sum() + next(int(name.size()));
        return all;
    }
};
template <> struct Row<0> { int sum() const { return 1; } };
int main() {
    Row<24> row;
    std::regex words("(\\w+)\\s+(\\d+)");
    std::unordered_map<std::string, int> counts;
    std::string line;
    while (std::getline(std::cin, line)) {
        std::smatch found;
        if (std::regex_search(line, found, words)) counts[found[1]] += std::stoi(found[2]);
    }
    std::cout << row.sum() << counts.size();
}
