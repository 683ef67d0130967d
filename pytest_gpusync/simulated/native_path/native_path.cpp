/* The native path of the simulated device: most kernels of the CUDA key, without entering the interpreter.
 *
 * A kernel of the CUDA key is a Python function. torch calls it through a boxed function, with the arguments on a stack of tagged
 * values. dispatch.py puts native_path_enter() in the place of that function, with a plan for each operator. It does what the Python
 * kernel would do in the plain case: dense tensors of one device, values, no capture. Everything else, and every call that fails or
 * gives an unexpected result, goes to the Python kernel with the arguments as they came, which alone decides what an operator does.
 *
 * No header of torch is included: torch_layout.py finds the offsets in torch's structures and writes them into the context. So one
 * library serves every release, CPU and CUDA builds alike.
 *
 * While races are looked for, each call writes what it read and wrote into the ring, with the line of the program; memory that another
 * stream than the default one may still use is left to Python, see follow().
 *
 * native_path_release() is for tensors that Python made: it notes that their memory was released, see lifetimes.py.
 */

#include <cstdint>
#include <cstdlib>
#include <new>

#define EXPORT extern "C" __attribute__((visibility("default")))

#ifdef GPUSYNC_SOURCE
EXPORT const char gpusync_source[] = GPUSYNC_SOURCE; /* digest of this file, by which a stale library is recognized */
#endif

typedef int8_t i8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;

enum { MOST_ARGUMENTS = 32, MOST_RESULTS = 8, ELEMENTS_AT_HAND = 64, DEVICES = 128, STORAGE_WORDS = 16, PLANS = 1 << 13 };
enum { TYPES = 64, SHARED = 1 << 12, CODES = 1 << 14, MOST_DIMENSIONS = 5, RECORD_WORDS = 512 };
enum { ONLY_DEVICE = 1, ONCE = 2, WRITES = 4, VIEW = 8, USES = 16, FILLS = 32 };

struct value { /* c10::IValue */
    u64 payload;
    u32 tag, unused;
};

struct values { /* std::vector<c10::IValue>: torch's stack, and the contents of a list */
    value *begin, *end, *limit;
};

struct object { /* c10::intrusive_ptr_target */
    void (**methods)(void *) noexcept;
    u64 count;
};
enum { DELETE = 1, RELEASE_RESOURCES = 2, DECREF_PYTHON = 4 }; /* of its methods */

struct list : object { /* c10::detail::ListImpl */
    values items;
};

struct owned { /* c10::intrusive_ptr; not trivial, so that a function returns it as torch's functions do */
    object *target;
    ~owned() {}
};

typedef void (*boxed)(void *functor, const void *op, u64 keys, values *stack);

struct cell { /* c10::KernelFunction: one cell of an operator's dispatch table */
    void *functor;
    boxed run;
};

struct plan { /* what is known of an operator */
    cell *host;
    u32 arguments, results, flags;
    u32 changed; /* a bit for each argument that it writes */
    i8 never; /* the argument that must not be true, or -1 */
    i8 alike; /* the argument that must be the data type of the first one, or -1 */
    i8 written[MOST_RESULTS]; /* the argument that a result is, or -1 */
};

struct context { /* lifetimes.py has the same structure */
    u64 head, mask; /* how many words were written into the ring, and the mask of its size */
    u64 *ring;
    void (*dlpack_deleter)(void *) noexcept;

    u64 open;    /* 0: every call goes to Python */
    u64 read;    /* how many words of the ring have been read */
    u64 at_most; /* unread words of the ring from which on Python is to read them */
    i64 room[DEVICES];
    u64 taken[DEVICES], taken_by_python[DEVICES];
    u64 devices;
    u64 calls, retried; /* calls that did not go to Python, and calls that were begun here and then did */

    boxed python; /* enters every kernel that is in Python */
    u64 key_set, device, type, storage, dimension;          /* offsets in a TensorImpl */
    u64 memory, deleter, memory_device, nbytes;             /* offsets in a StorageImpl */
    u64 cuda, cuda_inference, host, host_inference;         /* key sets */
    u64 keys;                                               /* of a call to a CPU kernel */
    u64 host_device, host_memory_device;                    /* as two bytes */
    u64 none, tensor, real, integer, boolean, generic, text, place; /* tags */
    void (*host_deleter)(void *) noexcept;
    object *undefined;
    owned (*shallow_copy)(const object *tensor, const void *version, bool change);
    const void *version;
    u64 storage_words, empty_storage[STORAGE_WORDS]; /* a StorageImpl of the host, to be filled */
    value seen[MOST_ARGUMENTS], listed[2][2];

    u64 following;                              /* not 0: write what is read and written into the ring */
    u64 sizes, strides, first_element, elements; /* offsets in a TensorImpl of at most MOST_DIMENSIONS dimensions */
    u64 item_size[TYPES];                       /* bytes of an element by data type, 0 if not known */
    u64 shared[SHARED];                         /* by shared_slot(): how many pieces of memory another stream may still use */
    int (*take_lock)(void);                     /* functions of the interpreter */
    void (*give_lock)(int);
    void *(*frame)(void);
    void *(*caller)(void *frame);
    void *(*code)(void *frame);
    int (*instruction)(void *frame);
    void (*let_go)(void *);
};

static context *current;

/* Plans by the kernel object that torch passes, in a hash table. */
static struct entry { void *functor; struct plan plan; } plans[PLANS];
static u64 planned;

static entry &find(void *functor)
{
    u64 slot = (u64)functor * 0x9E3779B97F4A7C15u >> 32;
    while (plans[slot % PLANS].functor != functor && plans[slot % PLANS].functor)
        slot++;
    return plans[slot % PLANS];
}

template <typename T> static inline T load(const T &from) { return __atomic_load_n(&from, __ATOMIC_RELAXED); }

template <typename T> static inline T &field(const void *object, u64 offset) { return *(T *)((char *)object + offset); }

static inline u32 references(const object *o) { return (u32)load(o->count); }
static inline bool has_python(const object *o) { return load(o->count) >> 63; }

/* What c10::intrusive_ptr does to let go of a reference. */
static void release(object *o) noexcept
{
    const u64 one = 1, one_weak = (u64)1 << 32, python = (u64)1 << 63;
    if (__atomic_load_n(&o->count, __ATOMIC_ACQUIRE) == one + one_weak) {
        __atomic_store_n(&o->count, 0, __ATOMIC_RELAXED);
        o->methods[DELETE](o);
        return;
    }
    u64 left = __atomic_sub_fetch(&o->count, one, __ATOMIC_ACQ_REL);
    if ((u32)left == 0) {
        if (((left & ~python) >> 32) != 1) {
            o->methods[RELEASE_RESOURCES](o);
            if (((__atomic_sub_fetch(&o->count, one_weak, __ATOMIC_ACQ_REL) & ~python) >> 32) != 0)
                return;
        }
        o->methods[DELETE](o);
    } else if ((left & python) && (u32)left == 1) {
        o->methods[DECREF_PYTHON](o);
    }
}

static inline void retain(object *o) { __atomic_add_fetch(&o->count, 1, __ATOMIC_RELAXED); }

static inline bool is_object(const context *c, const value &v)
{
    return v.tag == c->tensor ? (object *)v.payload != c->undefined : v.tag == c->generic || v.tag == c->text;
}

/* ---- what is given ---- */

enum kind { STRANGE, HOST, DEVICE };

/* What a tensor argument is; of one of the device, `index` becomes the device's or must be it. */
static inline kind tensor_kind(const context *c, const object *tensor, int &index, u32 flags)
{
    if (tensor == c->undefined)
        return HOST;
    u64 keys = field<u64>(tensor, c->key_set);
    if (keys == c->cuda || keys == c->cuda_inference) {
        int own = field<u16>(tensor, c->device) >> 8;
        if (index >= 0 && index != own)
            return STRANGE;
        index = own;
        return DEVICE;
    }
    if ((keys != c->host && keys != c->host_inference) || field<u64>(tensor, c->dimension) || (flags & ONLY_DEVICE))
        return STRANGE;
    /* Python holds it alone: to hold it, too, would take the interpreter's lock. */
    return has_python(tensor) && references(tensor) < 2 ? STRANGE : HOST;
}

/* Tell whether all arguments are plain; the device that they are on, and how many tensors are in lists. */
static bool plain(const context *c, const value *given, const plan *p, int &index, u64 &elements)
{
    for (const value *v = given; v < given + p->arguments; v++) {
        if (v->tag == c->tensor) {
            if (tensor_kind(c, (const object *)v->payload, index, p->flags) == STRANGE)
                return false;
        } else if (v->tag == c->generic) {
            const list *l = (const list *)v->payload;
            u64 before = elements;
            for (const value *item = l->items.begin; item < l->items.end; item++) {
                if (item->tag == c->tensor) {
                    elements++;
                    if (tensor_kind(c, (const object *)item->payload, index, p->flags) == STRANGE)
                        return false;
                } else if (item->tag != c->integer && item->tag != c->none && item->tag != c->real && item->tag != c->boolean) {
                    return false;
                }
            }
            if (elements != before && references(l) != 1)
                return false; /* its tensors are about to be exchanged for a while, and somebody else has it */
        } else if (v->tag == c->place) {
            int type = v->payload & 0xff, own = (i8)(v->payload >> 8);
            if (own < 0)
                own = c->devices == 1 ? 0 : 255;
            if (type != 1 || (u64)own >= c->devices || (index >= 0 && index != own))
                return false;
            index = own;
        } else if (v->tag != c->integer && v->tag != c->none && v->tag != c->real && v->tag != c->boolean && v->tag != c->text) {
            return false;
        }
    }
    if (p->never >= 0 && given[p->never].tag == c->boolean && (given[p->never].payload & 1))
        return false;
    if (p->alike >= 0 && given[p->alike].payload != field<u16>((object *)given[0].payload, c->type))
        return false;
    return index >= 0;
}

/* ---- what is lent to the CPU kernel ---- */

static void lent_died(void *storage) noexcept { release((object *)storage); }

/* A tensor of the host over the memory of `tensor`, with a storage of its own, since views look there for their device. All that
 * are lent have one count of changes. */
static object *lend(const context *c, const object *tensor)
{
    object *lent = c->shallow_copy(tensor, c->version, false).target;
    field<u64>(lent, c->key_set) = field<u64>(tensor, c->key_set) == c->cuda ? c->host : c->host_inference;
    field<u16>(lent, c->device) = c->host_device;
    object *&storage = field<object *>(lent, c->storage), *original = storage;
    if (original) {
        u64 *made = (u64 *)operator new(c->storage_words * sizeof(u64));
        for (u64 n = 0; n < c->storage_words; n++)
            made[n] = c->empty_storage[n];
        storage = (object *)made;
        field<u64>(made, c->memory) = field<u64>(original, c->memory);
        field<u64>(made, c->nbytes) = field<u64>(original, c->nbytes);
        field<void (*)(void *) noexcept>(made, c->deleter) = lent_died;
        field<object *>(made, c->deleter + sizeof(u64)) = original;
    }
    return lent;
}

static inline bool is_of_device(const context *c, const object *tensor)
{
    return tensor != c->undefined && (field<u16>(tensor, c->device) & 0xff) == 1;
}

/* One call: the arguments as they were, and what was lent in their place. */
struct loan {
    value kept[MOST_ARGUMENTS]; /* with a reference to each object */
    object *at_hand[ELEMENTS_AT_HAND], **originals; /* tensors of lists, in order */
};

static void keep(const context *c, const value *given, u32 arguments, loan &l)
{
    object **original = l.originals;
    for (u32 n = 0; n < arguments; n++) {
        const value &v = l.kept[n] = given[n];
        if (!is_object(c, v) || (v.tag == c->tensor && is_of_device(c, (object *)v.payload)))
            continue; /* of a tensor that will be exchanged the stack's reference is kept */
        retain((object *)v.payload);
        if (v.tag == c->generic)
            for (value *item = ((list *)v.payload)->items.begin; item < ((list *)v.payload)->items.end; item++)
                if (item->tag == c->tensor)
                    *original++ = (object *)item->payload;
    }
}

static void exchange(const context *c, value *given, u32 arguments)
{
    for (u32 n = 0; n < arguments; n++) {
        value &v = given[n];
        if (v.tag == c->place)
            v.payload = (v.payload & ~0xfffful) | c->host_device;
        else if (v.tag == c->tensor && is_of_device(c, (object *)v.payload))
            v.payload = (u64)lend(c, (object *)v.payload);
        else if (v.tag == c->generic)
            for (value *item = ((list *)v.payload)->items.begin; item < ((list *)v.payload)->items.end; item++)
                if (item->tag == c->tensor && is_of_device(c, (object *)item->payload))
                    item->payload = (u64)lend(c, (object *)item->payload);
    }
}

/* Put what was in the lists back into them. */
static void take_back(const context *c, u32 arguments, const loan &l) noexcept
{
    object **original = l.originals;
    for (const value *v = l.kept; v < l.kept + arguments; v++)
        if (v->tag == c->generic)
            for (value *item = ((list *)v->payload)->items.begin; item < ((list *)v->payload)->items.end; item++)
                if (item->tag == c->tensor) {
                    object *lent = (object *)item->payload;
                    item->payload = (u64)*original++;
                    if (lent != (object *)item->payload)
                        release(lent);
                }
}

/* Put all arguments back onto the stack, in place of what is there from `base` on, which is let go. */
static void restore(const context *c, values *stack, u64 base, u32 arguments, const loan &l) noexcept
{
    value *given = stack->begin + base;
    take_back(c, arguments, l);
    for (value *v = given; v < stack->end; v++) {
        bool original = v - given < arguments && v->tag == l.kept[v - given].tag && v->payload == l.kept[v - given].payload;
        if (is_object(c, *v) && !(original && v->tag == c->tensor && is_of_device(c, (object *)v->payload)))
            release((object *)v->payload);
    }
    for (u32 n = 0; n < arguments; n++)
        given[n] = l.kept[n];
    stack->end = given + arguments;
}

/* ---- what comes back ---- */

static inline bool is_fresh_tensor(const context *c, const object *tensor)
{
    if (tensor == c->undefined)
        return true;
    u64 keys = field<u64>(tensor, c->key_set);
    if ((keys != c->host && keys != c->host_inference) || references(tensor) != 1 || has_python(tensor))
        return false;
    const object *storage = field<object *>(tensor, c->storage);
    return storage && (u16)field<u16>(storage, c->memory_device) == (u16)c->host_memory_device
        && references(storage) <= MOST_RESULTS && !has_python(storage)
        && (field<void (*)(void *) noexcept>(storage, c->deleter) == c->host_deleter || !field<u64>(storage, c->memory));
}

/* The most that the allocator takes from the device for a block; allocator.py has the sizes of its segments. */
static inline u64 most_taken(u64 nbytes) { return nbytes + ((u64)(nbytes <= 1 << 20 || nbytes >= 10 << 20 ? 2 : 20) << 20); }

/* Tell whether a result is a tensor of the host that nobody else has, or a list of such; adds what memory it may take. */
static bool is_fresh(const context *c, const value &v, u64 &needed)
{
    if (v.tag == c->tensor) {
        if (!is_fresh_tensor(c, (object *)v.payload))
            return false;
        if ((object *)v.payload != c->undefined)
            needed += most_taken(field<u64>(field<object *>((object *)v.payload, c->storage), c->nbytes));
        return true;
    }
    if (v.tag != c->generic)
        return false;
    for (const value *item = ((list *)v.payload)->items.begin; item < ((list *)v.payload)->items.end; item++)
        if (item->tag != c->tensor || !is_fresh(c, *item, needed))
            return false;
    return true;
}

/* Write into the ring: memory dies, or is born. The order of the tickets is that of the events, and a word is 0 until it is written. */
static inline void write(context *c, u64 ticket, u64 word) { __atomic_store_n(&c->ring[ticket & c->mask], word, __ATOMIC_RELEASE); }

static void died(context *c, void *memory) { write(c, __atomic_fetch_add(&c->head, 1, __ATOMIC_SEQ_CST), (u64)memory); }

static void born(context *c, void *memory, u64 nbytes, int index)
{
    u64 ticket = __atomic_fetch_add(&c->head, 2, __ATOMIC_SEQ_CST);
    write(c, ticket, (u64)1 << 63 | (u64)index << 48 | nbytes);
    write(c, ticket + 1, (u64)memory);
    __atomic_fetch_add(&c->taken[index], most_taken(nbytes), __ATOMIC_RELAXED);
}

static void host_memory_died(void *memory) noexcept
{
    context *c = current;
    died(c, memory);
    c->host_deleter(memory);
}

/* Make a fresh tensor of the host one of the device. */
static void label(context *c, object *tensor, int index)
{
    if (tensor == c->undefined)
        return;
    u16 device = (u16)(1 | index << 8);
    field<u64>(tensor, c->key_set) = field<u64>(tensor, c->key_set) == c->host ? c->cuda : c->cuda_inference;
    field<u16>(tensor, c->device) = device;
    object *storage = field<object *>(tensor, c->storage);
    u16 &labelled = field<u16>(storage, c->memory_device);
    if (labelled == device)
        return; /* another result has the same memory */
    labelled = device;
    void *memory = field<void *>(storage, c->memory);
    if (!memory)
        return;
    field<void (*)(void *) noexcept>(storage, c->deleter) = host_memory_died;
    born(c, memory, field<u64>(storage, c->nbytes), index);
}

static void label_all(context *c, const value &v, int index)
{
    if (v.tag == c->tensor)
        label(c, (object *)v.payload, index);
    else
        for (value *item = ((list *)v.payload)->items.begin; item < ((list *)v.payload)->items.end; item++)
            label(c, (object *)item->payload, index);
}

/* ---- what is read and written, for who looks for races ---- */

/* Code objects that Python has classified, in a hash table; used with the interpreter's lock. */
static struct known { u64 code, is_users; } codes[CODES];
static u64 codes_known;

static known &find_code(u64 code)
{
    u64 slot = code * 0x9E3779B97F4A7C15u >> 32;
    while (codes[slot % CODES].code != code && codes[slot % CODES].code)
        slot++;
    return codes[slot % CODES];
}

struct line { /* an instruction of the program; code 0 if there is none */
    u64 code;
    int instruction;
};

/* Find the innermost frame of the user's code; false if there is code that Python has not classified. */
static bool find_line(const context *c, line &found)
{
    int lock = c->take_lock();
    void *frame = c->frame(), *owned = nullptr;
    bool known_all = true;
    found = line{0, 0};
    while (frame) {
        void *code = c->code(frame);
        const known &k = find_code((u64)code);
        c->let_go(code); /* the frame has it */
        known_all = k.code != 0;
        if (known_all && k.is_users)
            found = line{k.code, c->instruction(frame)};
        void *next = known_all && !k.is_users ? c->caller(frame) : nullptr;
        if (owned)
            c->let_go(owned);
        frame = owned = next;
    }
    c->give_lock(lock);
    return known_all;
}

static inline u64 shared_slot(u64 memory) { return (memory >> 6) % SHARED; }

static inline u64 memory_of(const context *c, const object *tensor)
{
    const object *storage = field<object *>(tensor, c->storage);
    return storage ? field<u64>(storage, c->memory) : 0;
}

static inline bool can_follow_tensor(const context *c, const object *tensor)
{
    u16 type = field<u16>(tensor, c->type);
    return field<u64>(tensor, c->dimension) <= MOST_DIMENSIONS && type < TYPES && c->item_size[type]
        && !load(c->shared[shared_slot(memory_of(c, tensor))]);
}

/* Tell whether what a call uses can be written down here, and find its line. */
static bool can_follow(const context *c, const value *given, const plan *p, line &where)
{
    for (const value *v = given; v < given + p->arguments && p->flags & USES; v++) {
        if (v->tag == c->tensor) {
            if (is_of_device(c, (object *)v->payload) && !can_follow_tensor(c, (object *)v->payload))
                return false;
        } else if (v->tag == c->generic) {
            for (const value *item = ((list *)v->payload)->items.begin; item < ((list *)v->payload)->items.end; item++)
                if (item->tag == c->tensor && is_of_device(c, (object *)item->payload)
                    && !can_follow_tensor(c, (object *)item->payload))
                    return false;
        }
    }
    return !(p->flags & (USES | FILLS)) || find_line(c, where);
}

/* A record: the number of words after the first three with bits 63 and 62 and the device, the code or 1, the instruction + 1; then
 * for each access the address of the memory with bit 62 for a write, the first byte, and the byte after the last one; or for memory
 * with gaps also bit 61, and instead of the last byte the number of dimensions and the bytes of an element, the sizes, and the
 * strides + 1. No word is 0. */
struct record {
    u64 words[RECORD_WORDS], count;
};

static void write_record(context *c, record &r, const line &where, int index)
{
    if (!r.count)
        return;
    u64 ticket = __atomic_fetch_add(&c->head, r.count + 3, __ATOMIC_SEQ_CST);
    write(c, ticket, (u64)3 << 62 | (u64)index << 48 | r.count);
    write(c, ticket + 1, where.code ? where.code : 1);
    write(c, ticket + 2, (u64)where.instruction + 1);
    for (u64 n = 0; n < r.count; n++)
        write(c, ticket + 3 + n, r.words[n]);
    r.count = 0;
}

static void note(context *c, record &r, const line &where, int index, const object *tensor, bool is_write)
{
    u64 count = field<u64>(tensor, c->elements), memory = memory_of(c, tensor);
    u64 dimensions = field<u64>(tensor, c->dimension), item = c->item_size[field<u16>(tensor, c->type) % TYPES];
    if (!count || !memory || dimensions > MOST_DIMENSIONS)
        return;
    if (r.count + 4 + 2 * MOST_DIMENSIONS > RECORD_WORDS)
        write_record(c, r, where, index);
    const u64 *sizes = &field<u64>(tensor, c->sizes), *strides = &field<u64>(tensor, c->strides);
    u64 dense = 1, start = memory + field<u64>(tensor, c->first_element) * item;
    bool has_gaps = false;
    for (u64 n = dimensions; n-- > 0;) {
        has_gaps |= sizes[n] != 1 && strides[n] != dense;
        dense *= sizes[n];
    }
    u64 *word = r.words + r.count;
    *word++ = memory | (u64)is_write << 62 | (u64)has_gaps << 61;
    *word++ = start;
    if (!has_gaps) {
        *word++ = start + count * item;
    } else {
        *word++ = dimensions << 8 | item;
        for (u64 n = 0; n < dimensions; n++)
            *word++ = sizes[n];
        for (u64 n = 0; n < dimensions; n++)
            *word++ = strides[n] + 1;
    }
    r.count = word - r.words;
}

/* Write into the ring what a call did to these values: bit n of `changed` tells whether it wrote value n. */
static void follow(context *c, const line &where, int index, const value *values, u32 count, u32 changed)
{
    record r;
    r.count = 0;
    for (u32 n = 0; n < count; n++) {
        const value &v = values[n];
        bool is_write = changed >> n & 1;
        if (v.tag == c->tensor) {
            if (is_of_device(c, (object *)v.payload))
                note(c, r, where, index, (object *)v.payload, is_write);
        } else if (v.tag == c->generic) {
            for (const value *item = ((list *)v.payload)->items.begin; item < ((list *)v.payload)->items.end; item++)
                if (item->tag == c->tensor && is_of_device(c, (object *)item->payload))
                    note(c, r, where, index, (object *)item->payload, is_write);
        }
    }
    write_record(c, r, where, index);
}

/* ---- the kernels ---- */

static bool computed(context *c, const void *op, values *stack, const plan *p, int index, loan &l, const line *where)
{
    u64 base = stack->end - stack->begin - p->arguments;
    keep(c, stack->begin + base, p->arguments, l);
    try {
        exchange(c, stack->begin + base, p->arguments);
        p->host->run(p->host->functor, op, c->keys, stack);
    } catch (...) {
        restore(c, stack, base, p->arguments, l);
        if (p->flags & WRITES)
            throw; /* it may have written already */
        return false;
    }
    value *results = stack->begin + base;
    u64 needed = 0;
    bool fresh = (u64)(stack->end - results) == p->results;
    for (u32 n = 0; fresh && n < p->results; n++)
        fresh = p->written[n] >= 0 || is_fresh(c, results[n], needed);
    if (fresh && needed && !(p->flags & ONCE)) {
        i64 left = load(c->room[index]) - (i64)load(c->taken[index]) - (i64)load(c->taken_by_python[index]);
        fresh = left >= (i64)needed;
    }
    if (!fresh) {
        restore(c, stack, base, p->arguments, l);
        return false;
    }
    take_back(c, p->arguments, l);
    if (where && p->flags & USES)
        follow(c, *where, index, l.kept, p->arguments, p->changed);
    u32 made = 0;
    for (u32 n = 0; n < p->results; n++) {
        made |= (u32)(p->written[n] < 0) << n;
        if (p->written[n] < 0) {
            label_all(c, results[n], index);
            continue;
        }
        value &original = l.kept[(u32)p->written[n]];
        if (is_object(c, results[n]))
            release((object *)results[n].payload);
        results[n] = original;
        original.tag = c->none;
    }
    if (where && p->flags & FILLS)
        for (u32 n = 0; n < p->results; n++)
            if (made >> n & 1)
                follow(c, *where, index, results + n, 1, 1);
    for (u32 n = 0; n < p->arguments; n++)
        if (is_object(c, l.kept[n]))
            release((object *)l.kept[n].payload);
    return true;
}

/* Run the CPU kernel over the memory of the arguments. */
static void compute(context *c, const plan *p, void *functor, const void *op, u64 keys, values *stack)
{
    int index = -1;
    u64 elements = 0;
    line where;
    const bool following = load(c->following);
    if (load(c->head) - load(c->read) < c->at_most && plain(c, stack->end - p->arguments, p, index, elements)
        && (!following || can_follow(c, stack->end - p->arguments, p, where))) {
        loan l;
        l.originals = elements <= ELEMENTS_AT_HAND ? l.at_hand : (object **)malloc(elements * sizeof(object *));
        if (l.originals) {
            bool done = computed(c, op, stack, p, index, l, following ? &where : nullptr);
            if (l.originals != l.at_hand)
                free(l.originals);
            if (done) {
                __atomic_fetch_add(&c->calls, 1, __ATOMIC_RELAXED);
                return;
            }
            __atomic_fetch_add(&c->retried, 1, __ATOMIC_RELAXED);
        }
    }
    c->python(functor, op, keys, stack);
}

/* What torch calls in the place of the function that enters the Python kernel `functor`. */
EXPORT void native_path_enter(void *functor, const void *op, u64 keys, values *stack)
{
    context *c = current;
    entry &found = find(functor);
    const plan *p = &found.plan;
    if (!load(c->open) || !found.functor) {
        c->python(functor, op, keys, stack);
    } else if (p->flags & VIEW) {
        /* The CPU kernel of a view takes the tensor of the device as it is. */
        __atomic_fetch_add(&c->calls, 1, __ATOMIC_RELAXED);
        p->host->run(p->host->functor, op, c->keys, stack);
    } else {
        compute(c, p, functor, op, keys, stack);
    }
}

/* Keep the nine arguments of the operator that torch_layout.py finds their tags with, the last two of which are lists; hand them on. */
EXPORT void native_path_inspect(void *functor, const void *op, u64 keys, values *stack)
{
    enum { ARGUMENTS = 9 };
    context *c = current;
    for (int n = 0; n < ARGUMENTS; n++)
        c->seen[n] = stack->end[n - ARGUMENTS];
    for (int n = 0; n < 2; n++) {
        const values &items = ((list *)stack->end[n - 2].payload)->items;
        for (int place = 0; place < 2 && (u64)items.end - (u64)items.begin == 2 * sizeof(value); place++)
            c->listed[n][place] = items.begin[place];
    }
    c->python(functor, op, keys, stack);
}

/* The deleter of a DLPack structure that Python has handed to torch: tell that it died, then do what torch's own deleter does. */
EXPORT void native_path_release(void *structure) noexcept
{
    context *c = current;
    died(c, structure);
    c->dlpack_deleter(structure);
}

/* Use `c` from now on, which stays for the life of the process; returns whether `nbytes`, its size in Python, is right. */
EXPORT bool native_path_attach(context *c, u64 nbytes)
{
    if (nbytes != sizeof *c)
        return false;
    current = c;
    return true;
}

/* Know the code object `code` from now on, which Python keeps; returns false if there is no room for it. */
EXPORT bool native_path_code(u64 code, bool is_users)
{
    known &k = find_code(code);
    if (!k.code && ++codes_known > CODES / 2)
        return false;
    k.is_users = is_users;
    k.code = code;
    return true;
}

/* Enter the kernel `functor` by this plan; returns false if there is no room for it. */
EXPORT bool native_path_plan(void *functor, const plan *p)
{
    entry &found = find(functor);
    if (!found.functor && ++planned > PLANS / 2)
        return false;
    found.plan = *p;
    __atomic_store_n(&found.functor, functor, __ATOMIC_RELEASE);
    return true;
}
