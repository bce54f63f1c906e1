/* own_thread PLUGIN: memory is committed after a plug-in has started a thread of its own. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words)
{
    void *plugin = count > 1 ? dlopen(words[1], RTLD_NOW) : NULL;
    if (!plugin)
        return puts(dlerror()), 1;
    printf("start: %d\n", ((int (*)(void))dlsym(plugin, "start"))());
    size_t wrong = 0;
    unsigned char *blocks[64];
    for (int i = 0; i < 64; i++) {
        blocks[i] = malloc(1 << 20);
        for (size_t at = 0; at < 1 << 20; at += 4096)
            blocks[i][at] = at >> 12 ^ i;
    }
    for (int i = 0; i < 64; i++)
        for (size_t at = 0; at < 1 << 20; at += 4096)
            wrong += blocks[i][at] != (unsigned char)(at >> 12 ^ i);
    printf("wrong: %zu\n", wrong);
    return 0;
}
