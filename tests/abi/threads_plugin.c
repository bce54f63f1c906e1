/* A library with thread-local variables, for cases of `threads`. */
static __thread long local[2000] = {[1000] = 7};

long add_to_local(long amount)
{
    local[1000] += amount;
    local[1999] += 1;
    return local[1000] + local[1999];
}
