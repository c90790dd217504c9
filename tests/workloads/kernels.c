// Five numeric kernels, as benchmarks of scientific computing have them: a fast Fourier transform, successive
// over-relaxation, an integral by random numbers, the product of a sparse matrix and a vector, and an LU factorisation.
// Each has a function for data that fit into a cache and one for data that do not; each function times itself. The program
// prints what it measured, and a checksum, so that nothing is optimised away.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static uint64_t nanos(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static uint64_t seed = 101010;
static double sum;

static double number(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 11) / 9007199254740992.0;
}

static double *numbers(long count) {
    double *all = malloc(count * sizeof *all);
    if (!all) exit(1);
    for (long i = 0; i < count; i++) all[i] = number();
    return all;
}

// A complex transform in place, of a power of two; `direction` 1 or -1. No call of the mathematical library: the roots come
// from half-angle formulas.
static double root(double square) {
    double x = square > 1 ? square : 1;
    for (int i = 0; i < 60; i++) x = 0.5 * (x + square / x);
    return x;
}

static void transform(double *data, long n, int direction) {
    for (long i = 1, j = 0; i < n; i++) {
        long bit = n >> 1;
        for (; j & bit; bit >>= 1) j ^= bit;
        j ^= bit;
        if (i < j)
            for (int part = 0; part < 2; part++) {
                double kept = data[2 * i + part];
                data[2 * i + part] = data[2 * j + part];
                data[2 * j + part] = kept;
            }
    }
    double cosine = -1, sine = 0;
    for (long length = 2; length <= n; length <<= 1) {
        for (long begin = 0; begin < n; begin += length) {
            double re = 1, im = 0;
            for (long k = begin; k < begin + length / 2; k++) {
                double *a = data + 2 * k, *b = data + 2 * (k + length / 2);
                double x = b[0] * re - b[1] * im, y = b[0] * im + b[1] * re;
                b[0] = a[0] - x, b[1] = a[1] - y;
                a[0] += x, a[1] += y;
                double next = re * cosine - im * direction * sine;
                im = re * direction * sine + im * cosine;
                re = next;
            }
        }
        double half = root((1 + cosine) / 2);
        sine = length == 2 ? 1 : root((1 - cosine) / 2);
        cosine = length == 2 ? 0 : half;
    }
}

static void fft(long n, int times) {
    double *data = numbers(2 * n);
    for (int i = 0; i < times; i++) {
        transform(data, n, 1);
        transform(data, n, -1);
        for (long k = 0; k < 2 * n; k++) data[k] /= n;
    }
    sum += data[n];
    free(data);
}

static void sor(long n, int times) {
    double *grid = numbers(n * n), omega = 1.25;
    for (int t = 0; t < times; t++)
        for (long i = 1; i < n - 1; i++) {
            double *row = grid + i * n;
            for (long j = 1; j < n - 1; j++)
                row[j] = omega * 0.25 * (row[j - n] + row[j + n] + row[j - 1] + row[j + 1]) + (1 - omega) * row[j];
        }
    sum += grid[n + 1];
    free(grid);
}

static void monte_carlo(long n, int times) {
    for (int t = 0; t < times; t++) {
        long under = 0;
        for (long i = 0; i < n; i++) {
            double x = number(), y = number();
            under += x * x + y * y <= 1;
        }
        sum += 4.0 * under / n;
    }
}

static void sparse(long n, int times) {
    enum { ROW = 10 };
    double *values = numbers(n * ROW), *x = numbers(n), *y = numbers(n);
    long *columns = malloc(n * ROW * sizeof *columns);
    if (!columns) exit(1);
    for (long i = 0; i < n * ROW; i++) columns[i] = (long)(number() * n);
    for (int t = 0; t < times; t++)
        for (long row = 0; row < n; row++) {
            double all = 0;
            for (long i = row * ROW; i < (row + 1) * ROW; i++) all += values[i] * x[columns[i]];
            y[row] = all;
        }
    sum += y[n / 2];
    free(values), free(x), free(y), free(columns);
}

static void lu(long n, int times) {
    for (int t = 0; t < times; t++) {
        double *a = numbers(n * n);
        for (long j = 0; j < n; j++) {
            long pivot = j;
            for (long i = j + 1; i < n; i++)
                if (a[i * n + j] * a[i * n + j] > a[pivot * n + j] * a[pivot * n + j]) pivot = i;
            for (long k = 0; pivot != j && k < n; k++) {
                double kept = a[j * n + k];
                a[j * n + k] = a[pivot * n + k];
                a[pivot * n + k] = kept;
            }
            for (long i = j + 1; i < n; i++) {
                double factor = a[i * n + j] / a[j * n + j];
                a[i * n + j] = factor;
                for (long k = j + 1; k < n; k++) a[i * n + k] -= factor * a[j * n + k];
            }
        }
        sum += a[n * n - 1];
        free(a);
    }
}

enum { MOST = 100 };
struct truth {
    uint64_t count, cpu, walls[MOST];
};

#define KERNEL(name, kernel, size, times)                           \
    static struct truth name##_truth;                               \
    __attribute__((noinline)) int name(void) {                      \
        uint64_t wall = nanos(CLOCK_MONOTONIC);                     \
        uint64_t cpu = nanos(CLOCK_THREAD_CPUTIME_ID);              \
        kernel(size, times);                                        \
        name##_truth.cpu += nanos(CLOCK_THREAD_CPUTIME_ID) - cpu;   \
        wall = nanos(CLOCK_MONOTONIC) - wall;                       \
        name##_truth.walls[name##_truth.count++ % MOST] = wall;     \
        return (int)name##_truth.count;                             \
    }

KERNEL(fft_small, fft, 1024, 60)
KERNEL(fft_large, fft, 262144, 1)
KERNEL(sor_small, sor, 100, 150)
KERNEL(sor_large, sor, 1000, 4)
KERNEL(monte_carlo_small, monte_carlo, 100000, 20)
KERNEL(monte_carlo_large, monte_carlo, 4000000, 1)
KERNEL(sparse_small, sparse, 1000, 1000)
KERNEL(sparse_large, sparse, 100000, 4)
KERNEL(lu_small, lu, 100, 30)
KERNEL(lu_large, lu, 400, 1)

static int compare(const void *a, const void *b) {
    uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;
    return (one > other) - (one < other);
}

// The median: a program that is preempted between the agent's clock and its own says nothing of either.
static void say(const char *name, struct truth truth) {
    qsort(truth.walls, truth.count, sizeof *truth.walls, compare);
    printf("TRUTH %s %lu %lu %lu 0\n", name, truth.count, truth.walls[truth.count / 2], truth.cpu);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 10;
    if (rounds < 1 || rounds > MOST) return 2;
    for (int i = 0; i < rounds; i++) {
        fft_small(), sor_small(), monte_carlo_small(), sparse_small(), lu_small();
        fft_large(), sor_large(), monte_carlo_large(), sparse_large(), lu_large();
    }
    say("fft_small", fft_small_truth), say("fft_large", fft_large_truth);
    say("sor_small", sor_small_truth), say("sor_large", sor_large_truth);
    say("monte_carlo_small", monte_carlo_small_truth), say("monte_carlo_large", monte_carlo_large_truth);
    say("sparse_small", sparse_small_truth), say("sparse_large", sparse_large_truth);
    say("lu_small", lu_small_truth), say("lu_large", lu_large_truth);
    printf("DONE %g\n", sum);
    fflush(stdout);
    // Its symbols are read from the running process.
    pause();
    return 0;
}
