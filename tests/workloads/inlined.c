/* Uses CPU in a function that is inlined into its caller. */
static volatile unsigned long sink;

/* Several on the line that samples are to show. On some processors every fourth sample of a loop with one step falls on the
   loop's own instructions, which are of another line. */
#define STEP sink = sink * 6364136223846793005UL + x;

static inline __attribute__((always_inline)) unsigned long inlined_hot(unsigned long x)
{
    for (unsigned long i = 0; i < 12500; i++) {
        STEP STEP STEP STEP STEP STEP STEP STEP /* HOT */
    }
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
