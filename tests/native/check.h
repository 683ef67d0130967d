/* What the tests of native code need. A test is a function; the program's status is how many checks failed. */

#pragma once

#include <stdio.h>

static int failures;

#define CHECK(condition)                                                                                                           \
    do {                                                                                                                           \
        if (!(condition)) {                                                                                                        \
            failures++;                                                                                                            \
            fprintf(stderr, "%s:%d: %s: not true: %s\n", __FILE__, __LINE__, __func__, #condition);                                \
        }                                                                                                                          \
    } while (0)

#define RUN(test)                                                                                                                  \
    do {                                                                                                                           \
        int before = failures;                                                                                                     \
        test();                                                                                                                    \
        printf("%s %s\n", failures == before ? "ok" : "FAILED", #test);                                                            \
    } while (0)
