/* Uses CPU in a function that is inlined into its caller. */
static volatile unsigned long sink;

static inline __attribute__((always_inline)) unsigned long inlined_hot(unsigned long x)
{
    for (unsigned long i = 0; i < 100000; i++)
        sink = sink * 6364136223846793005UL + x; /* HOT */
    return x + 1;
}

__attribute__((noinline)) static unsigned long outer(unsigned long x)
{
    unsigned long y = inlined_hot(x); /* CALL */
    __asm__ volatile("" ::: "memory");
    return y * 3;
}

int main(void)
{
    unsigned long x = 1;
    for (;;)
        x = outer(x);
}
