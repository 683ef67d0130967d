/* The call gate: what CUPTI calls. It runs without the GIL, takes no lock, and allocates nothing.
 *
 * docs/write_gate_code.py compiles it into gate_code.py; gate.py says what it is for. One function, position independent, without
 * data or relocations: all that it knows is in the context, whose layout gate.py repeats as a ctypes structure.
 */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;

enum { SLOTS = 4096, PLACES = 16384, STOPS = 4096, MOST_FRAMES = 64, IDS = 1024 };
enum { DRIVER = 1, RUNTIME = 2 };
enum { IGNORE = 0, PYTHON = 1, PYTHON_ON_EXIT = 2, LOG = 3, ACTION = 15 };
enum { HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2 };

#define MULTIPLIER 0x9E3779B97F4A7C15ul

struct record { /* of a call that is logged: one at its entry, one at its exit */
    u32 id;
    u8 site, domain;
    u16 unused;
    u64 thread, ticks, context, ticket;
};

struct call { /* of the noted thread, at its exit */
    u32 id, domain;
    u64 place, frame, instruction, entered, left, context, words[4], made;
};

struct context {
    u64 head, mask;
    struct record *ring;
    void (*python_callback)(void *, u32, u32, u64 *);
    int (*add_pending_call)(void *, void *);
    void *pending;
    u8 table[2 * IDS]; /* action, and in the upper four bits the words of its parameters that are of use */
    u64 inside[SLOTS], entered[SLOTS], left[SLOTS];
    u64 handed, asked;

    u64 noted_thread; /* its calls are noted with the place they came from; 0 for none */
    u8 *(*thread_state)(void);
    u64 (*operators_made)(void); /* by autograd on this thread so far; 0 without torch */
    u64 state_to_frame, through_cframe, cframe_to_frame, frame_to_code, frame_to_previous, frame_to_instruction;
    u64 noted, taken, capacity;
    struct call *calls;
    u64 places[PLACES]; /* places that Python knows */
    u64 stops[STOPS];   /* code objects of the user's: a place is the frames up to the first of them */
};

static inline u64 at(u64 address, u64 offset) { return *(volatile u64 *)(address + offset); }

static inline int holds(const u64 *table, u64 size, u64 value)
{
    u64 slot = value * MULTIPLIER >> 32;
    for (;; slot++) {
        u64 found = table[slot & (size - 1)];
        if (found == value)
            return 1;
        if (found == 0)
            return 0;
    }
}

/* Identify the innermost frames of the calling thread up to the first of the user's; place 0 if there is none.
 * Only this thread changes its frames, and it is in here: no lock is needed to read them. */
static inline void walk(struct context *c, struct call *call)
{
    call->place = call->frame = call->instruction = 0;
    u64 frame = (u64)c->thread_state();
    if (frame == 0)
        return;
    frame = at(frame, c->state_to_frame);
    if (c->through_cframe && frame)
        frame = at(frame, c->cframe_to_frame);
    if (frame) {
        call->frame = frame;
        call->instruction = at(frame, c->frame_to_instruction);
    }
    u64 place = 0;
    for (int depth = 0; frame && depth < MOST_FRAMES; depth++) {
        u64 code = at(frame, c->frame_to_code) & ~3ul;
        place = (place ^ code) * MULTIPLIER;
        place = (place ^ place >> 29 ^ at(frame, c->frame_to_instruction)) * MULTIPLIER;
        place ^= place >> 32;
        if (code && holds(c->stops, STOPS, code)) {
            call->place = place ? place : 1;
            return;
        }
        frame = at(frame, c->frame_to_previous);
    }
}

void gate(struct context *c, u32 domain, u32 id, u64 *data)
{
    if (domain - 1 > 1 || id >= IDS)
        return;
    u8 entry = c->table[(domain - 1) * IDS + id];
    u32 action = entry & ACTION, words = entry >> 4;
    if (action == IGNORE)
        return;
    u64 thread;
    __asm__("mov %%fs:0, %0" : "=r"(thread));
    u64 slot = thread * MULTIPLIER >> 52;
    u32 site = *(u32 *)data;
    if (domain == DRIVER) {
        if (c->inside[slot] == thread)
            return; /* what a runtime call does inside the driver */
    } else {
        c->inside[slot] = site == 0 ? thread : 0;
    }
    u64 ticks = __builtin_ia32_rdtsc();
    if (site == 0)
        c->entered[slot] = ticks;
    else
        c->left[slot] = ticks;

    if (action == LOG) {
        u64 ticket = __atomic_fetch_add(&c->head, 1, __ATOMIC_SEQ_CST);
        struct record *record = &c->ring[ticket & c->mask];
        record->id = id;
        record->site = site;
        record->domain = domain;
        record->thread = thread;
        record->ticks = ticks;
        record->context = id == IDS - 1 ? 0 : data[5];
        __atomic_store_n(&record->ticket, ticket + 1, __ATOMIC_RELEASE);
        if (site == 0 || __atomic_exchange_n(&c->asked, 1, __ATOMIC_SEQ_CST))
            return;
        c->add_pending_call(c->pending, 0);
        return;
    }
    if (action == PYTHON_ON_EXIT) {
        if (site == 0)
            return;
        u64 *parameters = words ? (u64 *)data[2] : 0;
        if (!parameters)
            words = 0;
        if (words == 4 && (u32)parameters[3] != HOST_TO_DEVICE && (u32)parameters[3] != DEVICE_TO_HOST)
            return; /* between buffers of devices the host does not wait */
        if (thread == c->noted_thread && c->noted - c->taken < c->capacity) {
            struct call *call = &c->calls[c->noted & (c->capacity - 1)];
            call->id = id;
            call->domain = domain;
            call->entered = c->entered[slot];
            call->left = ticks;
            call->context = data[5];
            for (u32 word = 0; word < 4; word++)
                call->words[word] = word < words ? parameters[word] : 0;
            call->words[3] = (u32)call->words[3]; /* an enumeration: the rest is padding */
            call->made = c->operators_made ? c->operators_made() : 0;
            walk(c, call);
            int is_known = call->place && holds(c->places, PLACES, call->place);
            __atomic_store_n(&c->noted, c->noted + 1, __ATOMIC_RELEASE);
            if (is_known && c->noted - c->taken < c->capacity / 2)
                return;
        }
    }
    __atomic_fetch_add(&c->handed, 1, __ATOMIC_SEQ_CST);
    c->python_callback(c, domain, id, data);
}
