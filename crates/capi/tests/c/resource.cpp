/* The memory resource of softswap.hpp under the containers of C++17. */
#include "softswap.hpp"

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#define CHECK(holds)                                                                     \
    do {                                                                                 \
        if (!(holds)) {                                                                  \
            std::fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #holds,         \
                         softswap_strerror_detail());                                    \
            return 1;                                                                    \
        }                                                                                \
    } while (0)

int main(int, char **argv)
{
    softswap_options options{};
    options.size = sizeof options;
    options.memory_bytes = 16 << 20;
    options.swap = argv[1];
    softswap::memory_resource resource(options);
    std::pmr::vector<std::uint64_t> numbers(&resource);
    for (std::uint64_t at = 0; at < 5'000'000; at++)
        numbers.push_back(at * 0x9e3779b97f4a7c15u);
    for (std::uint64_t at = 0; at < numbers.size(); at++)
        CHECK(numbers[at] == at * 0x9e3779b97f4a7c15u);

    std::pmr::unsynchronized_pool_resource small(&resource);
    std::pmr::map<int, std::pmr::string> names(&small);
    for (int at = 0; at < 200'000; at++)
        names.emplace(at, std::to_string(at) + " is a name too long for a string itself");
    for (int at = 0; at < 200'000; at += 7)
        CHECK(std::stoi(std::string(names.at(at))) == at);

    bool refused = false;
    try {
        (void)resource.allocate(64, 8192);
    } catch (const std::bad_alloc &) {
        refused = true;
    }
    CHECK(refused);
    softswap_stats stats{};
    stats.size = sizeof stats;
    CHECK(softswap_pool_stats(resource.pool(), &stats) == 0 && stats.faults_disk + stats.faults > 0);
    CHECK(stats.used_peak_bytes <= stats.budget_bytes);
    try {
        options.swap = "/nowhere";
        softswap::memory_resource none(options);
        CHECK(!"made");
    } catch (const std::runtime_error &) {
    }
    std::puts("done");
    return 0;
}
