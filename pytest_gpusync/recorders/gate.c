/* The call gate: the callback that CUPTI calls for each CUDA call it was asked about.
 *
 * gate.py says why it exists, and calls the exported functions. gate_call() runs on the thread that made the CUDA call, without the
 * GIL; it takes no lock and allocates nothing. It does not include Python.h: the functions of the interpreter that it calls and the
 * offsets of the structures that it reads are passed in, so that one library serves every version of CPython.
 *
 * What several threads write is atomic. gate_call() publishes a record or a note with a release store, and the reader copies it
 * after an acquire load.
 */

#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define relaxed memory_order_relaxed
#define acquire memory_order_acquire
#define release memory_order_release

#ifdef GPUSYNC_SOURCE
EXPORT const char gpusync_source[] = GPUSYNC_SOURCE; /* digest of this file, by which a stale library is recognized */
#endif

enum { SLOTS = 1 << 12, PLACES = 1 << 14, STOPS = 1 << 12, RECORDS = 1 << 15, NOTES = 1 << 12 };
enum { MOST_FRAMES = 64, IDS = 1024 };
enum { DRIVER = 1, RUNTIME = 2 };
enum { IGNORE = 0, PYTHON = 1, PYTHON_ON_EXIT = 2, LOG = 3, ACTION = 15, WORDS_SHIFT = 4 };
enum { HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2 };
enum { MOST_WORDS = 4, COPY_KIND = 3 };

static const uint64_t MULTIPLIER = 0x9E3779B97F4A7C15u;

struct callback_data { /* the first fields of CUpti_CallbackData */
    uint32_t site;
    const char *function;
    const uint64_t *parameters;
    void *result;
    const char *symbol;
    uint64_t context;
};

struct logged_call { /* one at the entry of a call and one at its exit */
    uint32_t id;
    uint16_t domain, site;
    uint64_t thread, time, context;
};

struct record { /* a logged_call in the ring */
    _Atomic uint64_t ticket, call, thread, time, context;
};

struct note { /* a call of the noted thread, at its exit */
    uint32_t id, domain;
    uint64_t place, frame, instruction, entered, left, context, words[MOST_WORDS], operators, sequence;
};

struct layout { /* offsets in the structures of the interpreter, see frames.py */
    uint64_t state_to_frame, has_cframe, cframe_to_frame, code, previous, instruction;
};

struct gate {
    /* How many calls were ever logged and noted, and how many Python was entered for and has returned from. Python reads these
     * three directly. */
    _Atomic uint64_t logged, noted, returned;
    _Atomic uint64_t taken;         /* notes that were read */
    _Atomic uint64_t open, inside;  /* `inside`: threads that are in gate_call() */
    _Atomic uint64_t asked;         /* the interpreter was asked to read the log */
    _Atomic uint8_t table[2 * IDS]; /* an action, and in the upper four bits how many parameters are noted */
    /* By a hash of the thread: itself while it is in a runtime call, and when it entered and left its last call. */
    _Atomic uint64_t in_runtime[SLOTS], entered[SLOTS], left[SLOTS];
    struct record records[RECORDS];

    void (*python_callback)(struct gate *, uint32_t, uint32_t, const struct callback_data *);
    int (*add_pending_call)(void *, void *);
    void *pending;
    uint8_t *(*thread_state)(void);
    _Atomic(uint64_t (*)(void)) operators; /* how many autograd has made on the calling thread; null without torch */

    _Atomic uint64_t noted_thread; /* the thread whose calls are noted; 0 for none */
    struct layout layout;
    struct note notes[NOTES];
    /* Hash tables of the noted thread. 0 marks an empty slot. */
    uint64_t places[PLACES], places_used; /* that Python knows the line of */
    uint64_t stops[STOPS], stops_used;    /* the user's code objects: a place is the frames up to the first of them */
};

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time); /* the clock of time.perf_counter_ns() */
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* The value of threading.get_ident(). */
static uint64_t this_thread(void) { return (uint64_t)pthread_self(); }

static uint64_t slot_of(uint64_t thread) { return (thread * MULTIPLIER >> 52) & (SLOTS - 1); }

/* The slot of a hash table that holds `value`, or the empty one where it belongs. Tables are at most half full. */
static uint64_t *find(uint64_t *table, uint64_t size, uint64_t value)
{
    uint64_t slot = value * MULTIPLIER >> 32;
    while (table[slot & (size - 1)] != value && table[slot & (size - 1)] != 0)
        slot++;
    return &table[slot & (size - 1)];
}

static int add(uint64_t *table, uint64_t size, uint64_t *used, uint64_t value)
{
    uint64_t *slot = find(table, size, value);
    if (*slot == value)
        return 1;
    if (*used >= size / 2)
        return 0;
    *slot = value;
    ++*used;
    return 1;
}

static uint64_t at(uint64_t address, uint64_t offset) { return *(const volatile uint64_t *)(address + offset); }

/* Identify the innermost frames of the calling thread up to the first one of the user's; place 0 if there is none.
 * Only this thread changes its frames, and it is in here: no lock is needed to read them. */
static void identify_place(struct gate *g, struct note *note)
{
    const struct layout *layout = &g->layout;
    note->place = note->frame = note->instruction = 0;
    uint64_t frame = (uint64_t)g->thread_state();
    if (frame == 0)
        return;
    frame = at(frame, layout->state_to_frame);
    if (layout->has_cframe && frame)
        frame = at(frame, layout->cframe_to_frame);
    if (frame) {
        note->frame = frame;
        note->instruction = at(frame, layout->instruction);
    }
    uint64_t place = 0;
    for (int depth = 0; frame && depth < MOST_FRAMES; depth++) {
        uint64_t code = at(frame, layout->code) & ~(uint64_t)3; /* the low bits may tag the pointer */
        place = (place ^ code) * MULTIPLIER;
        place = (place ^ place >> 29 ^ at(frame, layout->instruction)) * MULTIPLIER;
        place ^= place >> 32;
        if (code && *find(g->stops, STOPS, code)) {
            note->place = place ? place : 1;
            return;
        }
        frame = at(frame, layout->previous);
    }
}

static void log_call(struct gate *g, uint32_t domain, uint32_t id, const struct callback_data *data, uint64_t thread, uint64_t time)
{
    uint64_t ticket = atomic_fetch_add_explicit(&g->logged, 1, relaxed);
    struct record *record = &g->records[ticket & (RECORDS - 1)];
    /* A reader that is still copying the old record sees the ticket change before anything else does. */
    atomic_store_explicit(&record->ticket, 0, relaxed);
    atomic_store_explicit(&record->call, (uint64_t)data->site << 48 | (uint64_t)domain << 32 | id, release);
    atomic_store_explicit(&record->thread, thread, release);
    atomic_store_explicit(&record->time, time, release);
    atomic_store_explicit(&record->context, data->context, release);
    atomic_store_explicit(&record->ticket, ticket + 1, release);
}

/* Note a call that has returned. Returns 1 if Python need not be entered for it. */
static int note_call(struct gate *g, uint32_t domain, uint32_t id, const struct callback_data *data, uint64_t words, uint64_t entered,
                     uint64_t left)
{
    uint64_t sequence = atomic_load_explicit(&g->noted, relaxed);
    uint64_t unread = sequence - atomic_load_explicit(&g->taken, acquire);
    if (unread >= NOTES)
        return 0;
    struct note *note = &g->notes[sequence & (NOTES - 1)];
    note->id = id;
    note->domain = domain;
    note->entered = entered;
    note->left = left;
    note->context = data->context;
    for (uint64_t word = 0; word < MOST_WORDS; word++)
        note->words[word] = word < words ? data->parameters[word] : 0;
    note->words[COPY_KIND] = (uint32_t)note->words[COPY_KIND]; /* an enumeration: the rest is padding */
    uint64_t (*operators)(void) = atomic_load_explicit(&g->operators, relaxed);
    note->operators = operators ? operators() : 0;
    note->sequence = sequence;
    identify_place(g, note);
    int is_known = note->place && *find(g->places, PLACES, note->place);
    atomic_store_explicit(&g->noted, sequence + 1, release);
    return is_known && unread + 1 < NOTES / 2;
}

static void handle(struct gate *g, uint32_t domain, uint32_t id, const struct callback_data *data)
{
    if ((domain != DRIVER && domain != RUNTIME) || id >= IDS)
        return;
    uint8_t entry = atomic_load_explicit(&g->table[(domain - 1) * IDS + id], relaxed);
    uint32_t action = entry & ACTION, words = entry >> WORDS_SHIFT;
    if (action == IGNORE)
        return;
    uint64_t thread = this_thread(), slot = slot_of(thread);
    int is_exit = data->site != 0;
    if (domain == DRIVER) {
        if (atomic_load_explicit(&g->in_runtime[slot], relaxed) == thread)
            return; /* what a runtime call does inside the driver */
    } else {
        atomic_store_explicit(&g->in_runtime[slot], is_exit ? 0 : thread, relaxed);
    }
    uint64_t time = now();
    atomic_store_explicit(is_exit ? &g->left[slot] : &g->entered[slot], time, release);

    if (action == LOG) {
        log_call(g, domain, id, data, thread, time);
        if (is_exit && !atomic_exchange_explicit(&g->asked, 1, memory_order_acq_rel))
            g->add_pending_call(g->pending, NULL);
        return;
    }
    if (action == PYTHON_ON_EXIT) {
        if (!is_exit)
            return;
        if (!data->parameters)
            words = 0;
        uint32_t kind = words == MOST_WORDS ? (uint32_t)data->parameters[COPY_KIND] : HOST_TO_DEVICE;
        if (kind != HOST_TO_DEVICE && kind != DEVICE_TO_HOST)
            return; /* between buffers of devices the host does not wait */
        uint64_t entered = atomic_load_explicit(&g->entered[slot], relaxed);
        if (thread == atomic_load_explicit(&g->noted_thread, relaxed) && note_call(g, domain, id, data, words, entered, time))
            return;
    }
    g->python_callback(g, domain, id, data);
    atomic_fetch_add_explicit(&g->returned, 1, relaxed);
}

/* What CUPTI calls. */
EXPORT void gate_call(struct gate *g, uint32_t domain, uint32_t id, const struct callback_data *data)
{
    if (!atomic_load_explicit(&g->open, relaxed))
        return; /* not counted: whoever waits until nobody is inside need not wait for new calls */
    /* Sequentially consistent, as in gate_close(): it either sees this thread inside, or this thread sees the gate closed. */
    atomic_fetch_add(&g->inside, 1);
    if (atomic_load(&g->open))
        handle(g, domain, id, data);
    atomic_fetch_sub_explicit(&g->inside, 1, release);
}

/* Return a new gate, closed and with a table that ignores everything; null without memory. It is never freed: a late call
 * must find it. */
EXPORT struct gate *gate_new(void (*python_callback)(struct gate *, uint32_t, uint32_t, const struct callback_data *),
                             int (*add_pending_call)(void *, void *), void *pending, uint8_t *(*thread_state)(void))
{
    struct gate *g = calloc(1, sizeof *g);
    if (g) {
        g->python_callback = python_callback;
        g->add_pending_call = add_pending_call;
        g->pending = pending;
        g->thread_state = thread_state;
    }
    return g;
}

EXPORT void gate_set_action(struct gate *g, uint32_t domain, uint32_t id, uint32_t action, uint32_t words)
{
    atomic_store_explicit(&g->table[(domain - 1) * IDS + id], (uint8_t)(action | words << WORDS_SHIFT), relaxed);
}

EXPORT void gate_open(struct gate *g)
{
    for (uint64_t slot = 0; slot < SLOTS; slot++)
        atomic_store_explicit(&g->in_runtime[slot], 0, relaxed); /* calls that began before are not followed */
    atomic_store(&g->open, 1);
}

/*
 * Let no call in any more. Those that gate_inside() counts are still to leave. The load there must not pass this write. A
 * sequentially consistent store would do on hardware; emulators of aarch64 on x86 give no barrier between such a store and
 * a load, but they give one with a read-modify-write.
 */
EXPORT void gate_close(struct gate *g) { atomic_exchange(&g->open, 0); }

EXPORT uint64_t gate_inside(struct gate *g) { return atomic_load(&g->inside); }

EXPORT void gate_note_thread(struct gate *g, uint64_t thread, const struct layout *layout)
{
    if (thread) /* 0: calls are handed over again, and what was noted can still be taken */
        atomic_store_explicit(&g->taken, atomic_load_explicit(&g->noted, acquire), release);
    if (layout)
        g->layout = *layout;
    atomic_store_explicit(&g->noted_thread, layout ? thread : 0, relaxed);
}

EXPORT void gate_count_operators(struct gate *g, uint64_t (*operators)(void))
{
    atomic_store_explicit(&g->operators, operators, relaxed);
}

/* Have calls from `place` (unless it is 0) noted without entering Python, and let places end at `code`; returns 0 if there is no
 * room. Called on the noted thread, as is gate_forget_places(), or while the gate is closed. */
EXPORT int gate_learn_place(struct gate *g, uint64_t place, uint64_t code)
{
    return add(g->stops, STOPS, &g->stops_used, code) && (place == 0 || add(g->places, PLACES, &g->places_used, place));
}

EXPORT void gate_forget_places(struct gate *g)
{
    for (uint64_t slot = 0; slot < PLACES; slot++)
        g->places[slot] = 0;
    for (uint64_t slot = 0; slot < STOPS; slot++)
        g->stops[slot] = 0;
    g->places_used = g->stops_used = 0;
}

/* Copy up to `most` notes from number `first` on, oldest first; returns how many. Those before `first` may be overwritten from now
 * on. One caller at a time. */
EXPORT uint32_t gate_take_notes(struct gate *g, uint64_t first, struct note *into, uint32_t most)
{
    atomic_store_explicit(&g->taken, first, release);
    uint64_t noted = atomic_load_explicit(&g->noted, acquire);
    uint32_t count = 0;
    for (; first + count < noted && count < most; count++)
        into[count] = g->notes[(first + count) & (NOTES - 1)];
    return count;
}

/* From here on the next logged call asks the interpreter to read the log. */
EXPORT void gate_let_ask(struct gate *g) { atomic_exchange_explicit(&g->asked, 0, memory_order_acq_rel); }

/* Copy up to `most` logged calls from number `*next` on, which becomes the number after the last one that was read or lost;
 * returns how many were copied. One caller at a time. */
EXPORT uint32_t gate_read_log(struct gate *g, uint64_t *next, struct logged_call *into, uint32_t most)
{
    uint64_t logged = atomic_load_explicit(&g->logged, acquire);
    uint32_t count = 0;
    while (*next < logged && count < most) {
        if (logged - *next > RECORDS)
            *next = logged - RECORDS; /* those before were overwritten */
        struct record *record = &g->records[*next & (RECORDS - 1)];
        uint64_t ticket = atomic_load_explicit(&record->ticket, acquire);
        if (ticket == *next + 1) {
            uint64_t call = atomic_load_explicit(&record->call, acquire);
            into[count].id = (uint32_t)call;
            into[count].domain = (uint16_t)(call >> 32);
            into[count].site = (uint16_t)(call >> 48);
            into[count].thread = atomic_load_explicit(&record->thread, acquire);
            into[count].time = atomic_load_explicit(&record->time, acquire);
            into[count].context = atomic_load_explicit(&record->context, acquire);
        } else if (ticket <= *next) {
            break; /* the thread that has this number has not finished writing */
        }
        if (atomic_load_explicit(&record->ticket, relaxed) == *next + 1) {
            count++;
            ++*next;
        } else {
            logged = atomic_load_explicit(&g->logged, acquire); /* overwritten meanwhile: more than RECORDS behind */
        }
    }
    return count;
}

/* When a thread entered and left the call that it was in last. */
EXPORT void gate_times(struct gate *g, uint64_t thread, uint64_t *entered, uint64_t *left)
{
    uint64_t slot = slot_of(thread);
    *left = atomic_load_explicit(&g->left[slot], acquire);
    *entered = atomic_load_explicit(&g->entered[slot], acquire);
}
