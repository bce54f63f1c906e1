/* A library that allocates and frees blocks for its caller, for cases of `allocators`. */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *made_early;

__attribute__((constructor)) static void make_early(void)
{
    made_early = malloc(3000);
    strcpy(made_early, "early");
    free(calloc(10, 10));
}

char *plugin_early(void) { return made_early; }
void *plugin_malloc(size_t size) { return malloc(size); }
void *plugin_calloc(size_t count, size_t size) { return calloc(count, size); }
void *plugin_realloc(void *old, size_t size) { return realloc(old, size); }
void *plugin_aligned(size_t align, size_t size) { return aligned_alloc(align, size); }
char *plugin_strdup(const char *text) { return strdup(text); }
size_t plugin_usable(void *block) { return malloc_usable_size(block); }
void plugin_free(void *block) { free(block); }

char *plugin_print(int number)
{
    char *text;
    return asprintf(&text, "number %d", number) < 0 ? NULL : text;
}
