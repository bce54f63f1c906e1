/* A random walk over a graph: mostly among near neighbours, sometimes a jump,
   as in graphs of people or pages. Each node visited is read and changed. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { EDGES = 12, NEAR = 4096 };
struct node { uint64_t visits; uint32_t score; uint32_t edge[EDGES]; uint32_t label; };

static uint64_t state = 0x9e3779b97f4a7c15ull;
static uint64_t next(void) {
    state ^= state >> 12; state ^= state << 25; state ^= state >> 27;
    return state * 0x2545f4914f6cdd1dull;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    uint64_t nodes = strtoull(arguments[1], NULL, 10) / sizeof(struct node);
    uint64_t steps = strtoull(arguments[2], NULL, 10);
    struct node *graph = malloc(nodes * sizeof *graph);
    if (!graph) { fprintf(stderr, "no memory\n"); return 1; }
    for (uint64_t n = 0; n < nodes; n++) {
        graph[n].visits = 0;
        graph[n].score = (uint32_t)next();
        graph[n].label = (uint32_t)(n % 1000);
        for (int e = 0; e < EDGES; e++) {
            uint64_t draw = next();
            graph[n].edge[e] = (uint32_t)(e ? (n + (draw >> 40) % NEAR) % nodes
                                            : (draw >> 16) % nodes);
        }
    }
    uint64_t at = 0, sum = 0;
    for (uint64_t step = 0; step < steps; step++) {
        struct node *node = &graph[at];
        node->visits++;
        sum += node->score ^ node->visits;
        uint64_t draw = next() >> 32;
        /* The edge to a distant node is followed once in 64 steps. */
        at = node->edge[draw % 64 ? 1 + draw % (EDGES - 1) : 0];
    }
    printf("%llu nodes, %llu steps, sum %llx\n", (unsigned long long)nodes,
           (unsigned long long)steps, (unsigned long long)sum);
    return 0;
}
