/* Opens a plug-in by name, which only this program's search path contains, and lets it handle
 * signals, map memory, fork and start a thread. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    size_t bytes = 64 << 20, wrong = 0;
    unsigned char *data = malloc(bytes);
    for (size_t at = 0; at < bytes; at += 4096)
        data[at] = at >> 12;
    void *plugin = dlopen("softswap-test-deep-plugin.so", RTLD_NOW | RTLD_DEEPBIND);
    if (!plugin)
        return puts(dlerror()), 1;
    unsigned char *mapped = ((unsigned char *(*)(unsigned char *, size_t))dlsym(plugin, "work"))(data, bytes);
    for (size_t at = 0; at < bytes; at += 4096)
        wrong += data[at] != (unsigned char)(at >> 12) || mapped[at] != (unsigned char)(at >> 11);
    printf("wrong: %zu\n", wrong);
    printf("%s\n", dlopen("softswap-test-no-such.so", RTLD_NOW | RTLD_DEEPBIND) ? "open" : dlerror());
    return 0;
}
