/* Tests of the native path without torch: tensors, storages and kernels are made up here, laid out as the context says. */

#include "../../pytest_gpusync/simulated/native_path/native_path.cpp"

#include "check.h"

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

/* ---- a torch of our own ---- */

enum { NONE, TENSOR, REAL, INTEGER, BOOLEAN, LIST, TEXT, PLACE };
enum : u64 { HOST_KEYS = 0x11, CUDA_KEYS = 0x12, HOST_INFERENCE = 0x21, CUDA_INFERENCE = 0x22, OTHER_KEYS = 0x99 };
enum : u16 { ON_HOST = 0xff00 };
static u16 on_cuda(int index) { return (u16)(1 | index << 8); }

static std::atomic<int> living, memories;
static context world;
static u64 words[1 << 13];

struct storage : object {
    void *memory;
    void (*deleter)(void *) noexcept;
    void *told; /* what the deleter is given where the memory is not this storage's own */
    u64 nbytes;
    u16 device;
};

struct tensor : object {
    u64 keys;
    storage *held;
    u64 dimension;
    u16 type, device;
    u64 sizes[MOST_DIMENSIONS], strides[MOST_DIMENSIONS], first_element, elements;
};

static void drop_storage(void *o) noexcept
{
    storage *s = (storage *)o;
    living -= s->deleter != lent_died; /* those that the native path makes are not counted */
    if (s->memory)
        s->deleter(s->told ? s->told : s->memory);
    operator delete(o);
}

static void drop_tensor(void *o) noexcept
{
    if (((tensor *)o)->held)
        release(((tensor *)o)->held);
    delete (tensor *)o;
    living--;
}

static void drop_list(void *o) noexcept
{
    list *l = (list *)o;
    for (value *v = l->items.begin; v < l->items.end; v++)
        if (is_object(&world, *v))
            release((object *)v->payload);
    delete[] l->items.begin;
    delete l;
    living--;
}

static void nothing(void *) noexcept {}
static void (*of_storages[])(void *) noexcept = {nothing, drop_storage, nothing, nothing, nothing};
static void (*of_tensors[])(void *) noexcept = {nothing, drop_tensor, nothing, nothing, nothing};
static void (*of_lists[])(void *) noexcept = {nothing, drop_list, nothing, nothing, nothing};
static const u64 ONE = (u64)1 << 32 | 1;

static void give_to_host(void *memory) noexcept
{
    free(memory);
    memories--;
}

static storage *new_storage(u64 nbytes, u16 device)
{
    storage *s = (storage *)operator new(sizeof(storage));
    *s = storage{};
    s->methods = of_storages, s->count = ONE;
    s->memory = nbytes ? malloc(nbytes) : nullptr, s->deleter = give_to_host, s->nbytes = nbytes, s->device = device;
    memories += nbytes != 0;
    living++;
    return s;
}

static tensor *new_tensor(u64 keys = CUDA_KEYS, u16 device = on_cuda(0), u64 nbytes = 32, u64 dimension = 1)
{
    living++;
    tensor *t = new tensor{};
    t->methods = of_tensors, t->count = ONE, t->keys = keys, t->dimension = dimension, t->device = device, t->type = 6;
    t->held = new_storage(nbytes, device);
    t->sizes[0] = t->elements = nbytes / 4, t->strides[0] = 1;
    return t;
}

static tensor undefined = {{of_tensors, (u64)1 << 40}, 0, nullptr, 0, 0, 0, {}, {}, 0, 0};

static value of(tensor *t) { return {(u64)t, TENSOR, 0}; }
static value of(u32 tag, u64 payload) { return {payload, tag, 0}; }

static value of(const std::vector<value> &items)
{
    living++;
    list *l = new list{};
    l->methods = of_lists, l->count = ONE;
    l->items.begin = new value[items.size() + 1];
    l->items.end = l->items.limit = l->items.begin + items.size();
    memcpy((void *)l->items.begin, items.data(), items.size() * sizeof(value));
    return {(u64)l, LIST, 0};
}

static owned copy_of(const object *o, const void *version, bool change)
{
    CHECK(version == &world && !change);
    living++;
    const tensor *from = (const tensor *)o;
    tensor *t = new tensor{{of_tensors, ONE}, from->keys, from->held, from->dimension, from->type, from->device, {}, {}, 0, 0};
    if (t->held)
        retain(t->held);
    return {t};
}

/* ---- a call ---- */

struct stack { /* with room for results, as torch's */
    value room[MOST_ARGUMENTS + 4];
    values held;
    explicit stack(const std::vector<value> &given)
    {
        room[0] = of(INTEGER, 77); /* of an outer call */
        memcpy((void *)(room + 1), given.data(), given.size() * sizeof(value));
        held = {room, room + 1 + given.size(), room + MOST_ARGUMENTS + 4};
    }
    value *first() { return room + 1; }
    size_t size() { return (size_t)(held.end - first()); }
    ~stack()
    {
        CHECK(room[0].payload == 77);
        for (value *v = first(); v < held.end; v++)
            if (is_object(&world, *v))
                release((object *)v->payload);
    }
};

static std::atomic<int> python_calls, host_calls;
static size_t python_was_given;

static void python_kernel(void *, const void *, u64, values *stack)
{
    python_calls++;
    python_was_given = (size_t)(stack->end - stack->begin) - 1;
}

static void drop(values *stack, u32 arguments)
{
    for (u32 n = 0; n < arguments; n++) {
        stack->end--;
        if (is_object(&world, *stack->end))
            release((object *)stack->end->payload);
    }
}

static bool is_host(const value &v)
{
    const tensor *t = (const tensor *)v.payload;
    return (t->keys == HOST_KEYS || t->keys == HOST_INFERENCE) && t->device == ON_HOST;
}

/* The CPU kernel: takes two arguments and does what the variables say. */
static u32 takes = 2;
static std::vector<value> (*gives)(values *);

static void host_kernel(void *functor, const void *, u64 keys, values *stack)
{
    host_calls++;
    CHECK(functor == &host_calls && keys == world.keys);
    std::vector<value> results = gives(stack);
    drop(stack, takes);
    for (const value &v : results)
        *stack->end++ = v;
}

static std::vector<value> fresh(values *stack)
{
    for (value *v = stack->end - takes; v < stack->end; v++)
        CHECK(v->tag != TENSOR || v->payload == (u64)&undefined || is_host(*v));
    return {of(new_tensor(HOST_KEYS, ON_HOST))};
}

static std::vector<value> fails(values *) { throw std::runtime_error("shapes differ"); }

static cell host_cell = {&host_calls, host_kernel};
static int functor_of_op;

static plan *describe(u32 arguments = 2, u32 results = 1, u32 flags = 0)
{
    static plan p;
    p = plan{&host_cell, arguments, results, flags, 0, -1, -1, {-1, -1, -1, -1, -1, -1, -1, -1}};
    takes = arguments;
    return &p;
}

static void start(std::vector<value> (*does)(values *) = fresh)
{
    world = context{};
    memset((void *)words, 0, sizeof words);
    memset((void *)plans, 0, sizeof plans);
    memset((void *)codes, 0, sizeof codes);
    planned = codes_known = 0;
    world.mask = sizeof words / sizeof *words - 1, world.ring = words;
    world.open = 1, world.at_most = 1 << 12, world.devices = 2;
    world.room[0] = world.room[1] = (i64)1 << 40;
    world.python = python_kernel;
    world.key_set = offsetof(tensor, keys), world.storage = offsetof(tensor, held), world.dimension = offsetof(tensor, dimension);
    world.type = offsetof(tensor, type), world.device = offsetof(tensor, device);
    world.memory = offsetof(storage, memory), world.deleter = offsetof(storage, deleter);
    world.memory_device = offsetof(storage, device), world.nbytes = offsetof(storage, nbytes);
    world.cuda = CUDA_KEYS, world.cuda_inference = CUDA_INFERENCE;
    world.host = HOST_KEYS, world.host_inference = HOST_INFERENCE, world.keys = 0xc;
    world.host_device = world.host_memory_device = ON_HOST;
    world.none = NONE, world.tensor = TENSOR, world.real = REAL, world.integer = INTEGER;
    world.boolean = BOOLEAN, world.generic = LIST, world.text = TEXT, world.place = PLACE;
    world.host_deleter = give_to_host, world.undefined = &undefined, world.shallow_copy = copy_of, world.version = &world;
    world.storage_words = sizeof(storage) / sizeof(u64);
    storage *model = new_storage(0, ON_HOST);
    memcpy(world.empty_storage, (void *)model, sizeof(storage));
    release(model);
    CHECK(native_path_attach(&world, sizeof world));
    gives = does;
    python_calls = host_calls = 0;
    living = memories = 0;
}

static void enter(stack &s, const plan *p)
{
    CHECK(native_path_plan(&functor_of_op, p));
    native_path_enter(&functor_of_op, nullptr, 0, &s.held);
}

static void nothing_is_left(void)
{
    CHECK(living == 0);
    CHECK(memories == 0);
}

/* ---- what goes past Python ---- */

static void a_plain_call_is_computed_and_its_result_is_of_the_device(void)
{
    start();
    {
        tensor *x = new_tensor(), *y = new_tensor();
        stack s({of(x), of(y)});
        enter(s, describe());
        CHECK(host_calls == 1 && python_calls == 0 && world.calls == 1 && world.retried == 0);
        CHECK(s.size() == 1);
        tensor *made = (tensor *)s.first()->payload;
        CHECK(made->keys == CUDA_KEYS && made->device == on_cuda(0) && made->held->device == on_cuda(0));
        CHECK(world.head == 2);
        CHECK(words[0] == ((u64)1 << 63 | 32) && words[1] == (u64)made->held->memory);
        CHECK(world.taken[0] == 32 + (2 << 20));
        u64 memory = words[1];
        release(made);
        s.held.end--;
        CHECK(world.head == 3 && words[2] == memory);
    }
    nothing_is_left();
}

static void the_device_is_that_of_the_arguments(void)
{
    start();
    {
        stack s({of(new_tensor(CUDA_KEYS, on_cuda(1))), of(new_tensor(CUDA_INFERENCE, on_cuda(1)))});
        enter(s, describe());
        CHECK(python_calls == 0);
        CHECK(((tensor *)s.first()->payload)->device == on_cuda(1));
        CHECK(words[0] == ((u64)1 << 63 | (u64)1 << 48 | 32));
    }
    nothing_is_left();
}

static void a_tensor_of_the_host_without_dimensions_may_take_part(void)
{
    start();
    {
        stack s({of(new_tensor()), of(new_tensor(HOST_KEYS, ON_HOST, 4, 0))});
        enter(s, describe());
        CHECK(python_calls == 0);
    }
    {
        stack s({of(new_tensor()), of(&undefined)});
        enter(s, describe());
        CHECK(python_calls == 0);
    }
    nothing_is_left();
}

static std::vector<value> the_first(values *stack)
{
    retain((object *)stack->end[-(long)takes].payload);
    return {stack->end[-(long)takes]};
}

static void what_is_written_is_the_tensor_that_was_given(void)
{
    start(the_first);
    {
        tensor *x = new_tensor();
        stack s({of(x), of(new_tensor())});
        plan *p = describe(2, 1, WRITES);
        p->written[0] = 0;
        enter(s, p);
        CHECK(python_calls == 0 && s.size() == 1 && s.first()->payload == (u64)x && references(x) == 1);
        CHECK(world.head == 0);
    }
    nothing_is_left();
}

static std::vector<value> a_list_of_two(values *stack)
{
    list *l = (list *)stack->end[-(long)takes].payload;
    for (value *v = l->items.begin; v < l->items.end; v++)
        CHECK(is_host(*v));
    return {of({of(new_tensor(HOST_KEYS, ON_HOST)), of(new_tensor(HOST_KEYS, ON_HOST))})};
}

static void tensors_in_lists_are_exchanged_and_put_back(void)
{
    for (size_t count : {2, 200}) {
        start(a_list_of_two);
        {
            std::vector<value> given;
            for (size_t n = 0; n < count; n++)
                given.push_back(of(new_tensor()));
            value items = of(given);
            stack s({items, of(REAL, 0)});
            enter(s, describe());
            CHECK(python_calls == 0 && s.size() == 1 && s.first()->tag == LIST && world.head == 4);
        }
        nothing_is_left();
    }
}

static std::vector<value> two_views_of_one(values *)
{
    tensor *one = new_tensor(HOST_KEYS, ON_HOST), *other = new tensor(*one);
    living++;
    retain(one->held);
    return {of(one), of(other)};
}

static void results_that_share_their_memory_are_one_birth(void)
{
    start(two_views_of_one);
    {
        stack s({of(new_tensor()), of(new_tensor())});
        enter(s, describe(2, 2));
        CHECK(python_calls == 0 && s.size() == 2 && world.head == 2);
    }
    nothing_is_left();
}

static std::vector<value> a_tensor_that_was_told_where(values *stack)
{
    CHECK((stack->end[-1].payload & 0xffff) == ON_HOST);
    return {of(new_tensor(HOST_KEYS, ON_HOST))};
}

static void a_device_that_is_asked_for_is_the_hosts_meanwhile(void)
{
    start(a_tensor_that_was_told_where);
    {
        stack s({of(INTEGER, 3), of(PLACE, on_cuda(1))});
        enter(s, describe());
        CHECK(python_calls == 0 && ((tensor *)s.first()->payload)->device == on_cuda(1));
    }
    nothing_is_left();
}

static void a_view_takes_the_tensor_as_it_is(void)
{
    start([](values *stack) -> std::vector<value> {
        CHECK(!is_host(stack->end[-2]));
        return {of(NONE, 0)};
    });
    {
        stack s({of(new_tensor()), of(INTEGER, 0)});
        enter(s, describe(2, 1, VIEW));
        CHECK(python_calls == 0 && host_calls == 1 && world.calls == 1);
    }
    nothing_is_left();
}

/* ---- what goes to Python ---- */

static void goes_to_python(const std::vector<value> &given, const plan *p, int begun = 0)
{
    stack s(given);
    enter(s, p);
    CHECK(python_calls == 1 && host_calls == begun && world.calls == 0 && world.retried == (u64)begun);
    CHECK(python_was_given == given.size());
    for (size_t n = 0; n < given.size(); n++) {
        CHECK(s.first()[n].payload == given[n].payload && s.first()[n].tag == given[n].tag);
        if (given[n].tag == TENSOR && given[n].payload != (u64)&undefined)
            CHECK(references((object *)given[n].payload) == 1);
    }
}

static void what_is_not_plain_goes_to_python_as_it_came(void)
{
    start();
    goes_to_python({of(new_tensor()), of(new_tensor(HOST_KEYS, ON_HOST))}, describe()); /* of the host */
    nothing_is_left();
    start();
    goes_to_python({of(new_tensor()), of(new_tensor(CUDA_KEYS, on_cuda(1)))}, describe()); /* of another device */
    nothing_is_left();
    start();
    goes_to_python({of(new_tensor()), of(new_tensor(OTHER_KEYS))}, describe()); /* sparse, a subclass, a conjugate */
    nothing_is_left();
    start();
    goes_to_python({of(new_tensor()), of(55, 0)}, describe()); /* an argument of an unknown kind */
    nothing_is_left();
    start();
    goes_to_python({of(new_tensor()), of({of(55, 0)})}, describe());
    nothing_is_left();
    start();
    goes_to_python({of(INTEGER, 1), of(INTEGER, 2)}, describe()); /* nothing tells the device */
    nothing_is_left();
    start();
    goes_to_python({of(new_tensor()), of(PLACE, on_cuda(1))}, describe()); /* to another device */
    nothing_is_left();
    start();
    goes_to_python({of(new_tensor()), of(PLACE, 0xff00)}, describe()); /* to the host */
    nothing_is_left();
    start();
    goes_to_python({of(new_tensor()), of(PLACE, 0xff01)}, describe()); /* to the current one of several devices */
    nothing_is_left();
    start();
    goes_to_python({of(new_tensor()), of(new_tensor(HOST_KEYS, ON_HOST, 4, 0))}, describe(2, 1, ONLY_DEVICE));
    nothing_is_left();
    start();
    plan *p = describe();
    p->never = 1;
    goes_to_python({of(new_tensor()), of(BOOLEAN, 1)}, p);
    nothing_is_left();
    start();
    p = describe();
    p->alike = 1;
    goes_to_python({of(new_tensor()), of(INTEGER, 15)}, p); /* another data type */
    nothing_is_left();
}

static void a_tensor_that_only_python_holds_goes_to_python(void)
{
    start();
    tensor *host = new_tensor(HOST_KEYS, ON_HOST, 4, 0);
    host->count |= (u64)1 << 63;
    goes_to_python({of(new_tensor()), of(host)}, describe());
}

static void a_list_that_somebody_else_has_goes_to_python(void)
{
    start();
    value items = of({of(new_tensor())});
    retain((object *)items.payload);
    {
        stack s({items, of(REAL, 0)});
        enter(s, describe());
        CHECK(python_calls == 1 && host_calls == 0);
    }
    release((object *)items.payload);
    nothing_is_left();
}

static void a_kernel_that_fails_leaves_the_arguments_to_python(void)
{
    start(fails);
    tensor *inside = new_tensor();
    value items = of({of(inside), of(INTEGER, 1)});
    goes_to_python({of(new_tensor()), items}, describe(), 1);
    nothing_is_left();
}

static void a_kernel_that_fails_after_it_may_have_written_raises(void)
{
    start(fails);
    {
        tensor *x = new_tensor();
        stack s({of(x), of(new_tensor())});
        bool raised = false;
        plan *p = describe(2, 1, WRITES);
        p->written[0] = 0;
        try {
            enter(s, p);
        } catch (const std::runtime_error &error) {
            raised = !strcmp(error.what(), "shapes differ");
        }
        CHECK(raised && python_calls == 0 && s.size() == 2 && s.first()->payload == (u64)x && references(x) == 1);
    }
    nothing_is_left();
}

static tensor *kept;

static void results_that_are_not_fresh_go_to_python(void)
{
    std::vector<value> (*odd[])(values *) = {
        the_first, /* it is what was given */
        [](values *) -> std::vector<value> { return {of(INTEGER, 5)}; },
        [](values *) -> std::vector<value> { return {}; },
        [](values *) -> std::vector<value> { return {of(new_tensor(OTHER_KEYS, ON_HOST))}; },
        [](values *) -> std::vector<value> { return {of({of(INTEGER, 5)})}; },
        [](values *) -> std::vector<value> {
            tensor *t = new_tensor(HOST_KEYS, ON_HOST);
            t->held->deleter = [](void *memory) noexcept { give_to_host(memory); }; /* of another allocator */
            return {of(t)};
        },
        [](values *) -> std::vector<value> {
            retain(kept); /* somebody else has it */
            return {of(kept)};
        },
    };
    for (auto does : odd) {
        start(does);
        kept = new_tensor(HOST_KEYS, ON_HOST);
        goes_to_python({of(new_tensor()), of(new_tensor())}, describe(), 1);
        CHECK(world.head == 0 && world.taken[0] == 0 && references(kept) == 1);
        release(kept);
        nothing_is_left();
    }
}

static void a_result_that_may_not_fit_goes_to_python(void)
{
    start();
    world.room[0] = 3 << 20;
    world.taken_by_python[0] = 1 << 20;
    goes_to_python({of(new_tensor()), of(new_tensor())}, describe(), 1);
    nothing_is_left();
    {
        /* unless it must not be computed twice */
        stack s({of(new_tensor()), of(new_tensor())});
        enter(s, describe(2, 1, ONCE));
        CHECK(python_calls == 1);
    }
    nothing_is_left();
}

static void a_closed_path_an_unknown_kernel_and_an_unread_ring_go_to_python(void)
{
    start();
    world.open = 0;
    goes_to_python({of(new_tensor()), of(new_tensor())}, describe());
    start();
    world.head = world.at_most;
    goes_to_python({of(new_tensor()), of(new_tensor())}, describe());
    start();
    {
        stack s({of(new_tensor())});
        native_path_enter(&s, nullptr, 0, &s.held);
        CHECK(python_calls == 1 && host_calls == 0);
    }
}

/* ---- what is written down for who looks for races ---- */

/* An interpreter: a frame is the address of a number in a row of code objects, from the innermost one to 0. */
static u64 stack_of_code[4];
static int locks;
static int take_lock(void) { return ++locks; }
static void give_lock(int lock) { CHECK(lock == locks--); }
static void *innermost_frame(void) { return stack_of_code[0] ? stack_of_code : nullptr; }
static void *caller_of(void *frame) { return ((u64 *)frame)[1] ? (u64 *)frame + 1 : nullptr; }
static void *code_of(void *frame) { return (void *)*(u64 *)frame; }
static int instruction_of(void *frame) { return (int)*(u64 *)frame % 100; }
static void forget(void *) {}

enum : u64 { LIBRARY_CODE = 1011, USERS_CODE = 1022, UNKNOWN_CODE = 1033 };

static void start_following(std::vector<value> (*does)(values *) = fresh)
{
    start(does);
    world.following = 1, world.item_size[6] = 4;
    world.sizes = offsetof(tensor, sizes), world.strides = offsetof(tensor, strides);
    world.first_element = offsetof(tensor, first_element), world.elements = offsetof(tensor, elements);
    world.take_lock = take_lock, world.give_lock = give_lock, world.frame = innermost_frame, world.caller = caller_of;
    world.code = code_of, world.instruction = instruction_of, world.let_go = forget;
    CHECK(native_path_code(LIBRARY_CODE, false) && native_path_code(USERS_CODE, true));
    stack_of_code[0] = LIBRARY_CODE, stack_of_code[1] = USERS_CODE, stack_of_code[2] = UNKNOWN_CODE;
}

static void what_a_call_reads_and_makes_is_written_with_the_users_line(void)
{
    start_following();
    {
        tensor *x = new_tensor(), *y = new_tensor();
        y->first_element = 2, y->elements = y->sizes[0] = 3;
        u64 first = (u64)x->held->memory, second = (u64)y->held->memory;
        stack s({of(x), of(y)});
        enter(s, describe(2, 1, USES | FILLS));
        CHECK(python_calls == 0 && locks == 0);
        /* the arguments, the birth of the result, the result, and the deaths of the arguments */
        CHECK(words[0] == ((u64)3 << 62 | 6) && words[1] == USERS_CODE && words[2] == 22 + 1);
        CHECK(words[3] == first && words[4] == first && words[5] == first + 32);
        CHECK(words[6] == second && words[7] == second + 8 && words[8] == second + 20);
        CHECK(words[9] == ((u64)1 << 63 | 32));
        u64 made = words[10];
        CHECK(words[11] == ((u64)3 << 62 | 3) && words[14] == (made | (u64)1 << 62) && words[16] == made + 32);
    }
    nothing_is_left();
}

static void what_is_written_in_place_is_told_from_what_is_read(void)
{
    start_following(the_first);
    {
        stack s({of(new_tensor()), of({of(new_tensor()), of(INTEGER, 3)})});
        plan *p = describe(2, 1, WRITES | USES);
        p->written[0] = 0, p->changed = 1;
        enter(s, p);
        CHECK(python_calls == 0 && words[0] == ((u64)3 << 62 | 6));
        CHECK((words[3] >> 62) == 1 && (words[6] >> 62) == 0);
    }
    nothing_is_left();
}

static void memory_with_gaps_is_written_with_its_sizes_and_strides(void)
{
    start_following();
    {
        tensor *x = new_tensor(CUDA_KEYS, on_cuda(1), 96, 2);
        x->sizes[0] = 2, x->sizes[1] = 3, x->strides[0] = 12, x->strides[1] = 0, x->elements = 6;
        u64 memory = (u64)x->held->memory;
        stack s({of(x), of(INTEGER, 1)});
        enter(s, describe(2, 1, USES));
        CHECK(python_calls == 0 && words[0] == ((u64)3 << 62 | (u64)1 << 48 | 7));
        CHECK(words[3] == (memory | (u64)1 << 61) && words[4] == memory && words[5] == (2 << 8 | 4));
        CHECK(words[6] == 2 && words[7] == 3 && words[8] == 12 + 1 && words[9] == 0 + 1);
    }
    nothing_is_left();
}

static void a_long_list_is_written_in_several_records(void)
{
    enum { TENSORS = 300 };
    start_following(the_first);
    {
        std::vector<value> many;
        for (int n = 0; n < TENSORS; n++)
            many.push_back(of(new_tensor()));
        stack s({of(new_tensor()), of(many)});
        plan *p = describe(2, 1, WRITES | USES);
        p->written[0] = 0;
        enter(s, p);
        CHECK(python_calls == 0);
        u64 accesses = 0, place = 0;
        while (words[place] >> 62 == 3) {
            u64 count = words[place] & 0xffff;
            CHECK(count && count % 3 == 0 && count <= RECORD_WORDS && words[place + 1] == USERS_CODE);
            accesses += count / 3;
            place += 3 + count;
        }
        CHECK(accesses == TENSORS + 1);
    }
    nothing_is_left();
}

static void a_program_without_code_of_the_user_is_written_without_a_line(void)
{
    start_following();
    {
        stack_of_code[1] = 0;
        stack s({of(new_tensor()), of(INTEGER, 1)});
        enter(s, describe(2, 1, USES));
        CHECK(python_calls == 0 && words[1] == 1 && words[2] == 1);
    }
    nothing_is_left();
}

static void what_cannot_be_followed_goes_to_python(void)
{
    start_following();
    {
        tensor *x = new_tensor();
        u64 slot = shared_slot((u64)x->held->memory);
        stack s({of(x), of(INTEGER, 1)});
        const plan *p = describe(2, 1, USES);
        world.shared[slot] = 1; /* another stream may still use it */
        enter(s, p);
        CHECK(python_calls == 1);
        world.shared[slot] = 0, x->dimension = MOST_DIMENSIONS + 1;
        enter(s, p);
        CHECK(python_calls == 2);
        x->dimension = 1, x->type = 7; /* of unknown size */
        enter(s, p);
        CHECK(python_calls == 3);
        x->type = 6, stack_of_code[0] = UNKNOWN_CODE;
        enter(s, p);
        CHECK(python_calls == 4 && host_calls == 0 && world.head == 0 && locks == 0);
        enter(s, describe(2, 1, 0)); /* uses nothing: its line does not matter */
        CHECK(python_calls == 4);
    }
    nothing_is_left();
}

/* ---- the rest ---- */

static std::atomic<int> deleted;

static void the_death_of_a_structure_is_written_and_handed_on(void)
{
    start();
    int structure;
    deleted = 0;
    world.dlpack_deleter = [](void *) noexcept { deleted++; };
    native_path_release(&structure);
    CHECK(world.head == 1 && words[0] == (u64)&structure && deleted == 1);
}

static void arguments_are_shown(void)
{
    start();
    tensor *x = new_tensor();
    {
        retain(x), retain(x), retain(x);
        stack s({of(x), of(NONE, 0), of(REAL, 2), of(INTEGER, 77), of(BOOLEAN, 1), of(PLACE, 0x401), of(TEXT, (u64)new_tensor()),
                 of({of(INTEGER, 11), of(INTEGER, 12)}), of({of(x), of(x)})});
        native_path_inspect(nullptr, nullptr, 0, &s.held);
        CHECK(python_calls == 1);
        CHECK(world.seen[0].payload == (u64)x && world.seen[3].payload == 77 && world.seen[8].tag == LIST);
        CHECK(world.listed[0][1].payload == 12 && world.listed[1][0].payload == (u64)x);
    }
    release(x);
    nothing_is_left();
}

static void there_is_room_for_half_as_many_plans_as_the_table_has_places(void)
{
    start();
    static char functors[PLANS];
    const plan *p = describe();
    for (int n = 0; n < PLANS / 2; n++)
        CHECK(native_path_plan(functors + n, p));
    CHECK(!native_path_plan(functors + PLANS / 2, p));
    CHECK(native_path_plan(functors + 5, p)); /* one that is there is replaced */
    CHECK(find(functors + 5).functor == functors + 5 && !find(functors + PLANS / 2).functor);
}

static void a_context_of_another_size_is_refused(void)
{
    start();
    CHECK(!native_path_attach(&world, sizeof world - 8));
    CHECK(current == &world);
}

static void threads_compute_beside_each_other(void)
{
    enum { THREADS = 4, CALLS = 200 };
    start();
    CHECK(native_path_plan(&functor_of_op, describe()));
    tensor *shared = new_tensor();
    shared->count += 2 * THREADS * CALLS;
    std::vector<std::thread> threads;
    for (int n = 0; n < THREADS; n++)
        threads.emplace_back([shared] {
            for (int call = 0; call < CALLS; call++) {
                stack s({of(shared), of(shared)});
                native_path_enter(&functor_of_op, nullptr, 0, &s.held);
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    CHECK(world.calls == THREADS * CALLS && python_calls == 0 && world.head == 3 * THREADS * CALLS);
    for (u64 n = 0; n < world.head; n++)
        CHECK(words[n] != 0);
    CHECK(references(shared) == 1);
    release(shared);
    nothing_is_left();
}

int main()
{
    RUN(a_plain_call_is_computed_and_its_result_is_of_the_device);
    RUN(the_device_is_that_of_the_arguments);
    RUN(a_tensor_of_the_host_without_dimensions_may_take_part);
    RUN(what_is_written_is_the_tensor_that_was_given);
    RUN(tensors_in_lists_are_exchanged_and_put_back);
    RUN(results_that_share_their_memory_are_one_birth);
    RUN(a_device_that_is_asked_for_is_the_hosts_meanwhile);
    RUN(a_view_takes_the_tensor_as_it_is);
    RUN(what_is_not_plain_goes_to_python_as_it_came);
    RUN(a_tensor_that_only_python_holds_goes_to_python);
    RUN(a_list_that_somebody_else_has_goes_to_python);
    RUN(a_kernel_that_fails_leaves_the_arguments_to_python);
    RUN(a_kernel_that_fails_after_it_may_have_written_raises);
    RUN(results_that_are_not_fresh_go_to_python);
    RUN(a_result_that_may_not_fit_goes_to_python);
    RUN(a_closed_path_an_unknown_kernel_and_an_unread_ring_go_to_python);
    RUN(what_a_call_reads_and_makes_is_written_with_the_users_line);
    RUN(what_is_written_in_place_is_told_from_what_is_read);
    RUN(memory_with_gaps_is_written_with_its_sizes_and_strides);
    RUN(a_long_list_is_written_in_several_records);
    RUN(a_program_without_code_of_the_user_is_written_without_a_line);
    RUN(what_cannot_be_followed_goes_to_python);
    RUN(the_death_of_a_structure_is_written_and_handed_on);
    RUN(arguments_are_shown);
    RUN(there_is_room_for_half_as_many_plans_as_the_table_has_places);
    RUN(a_context_of_another_size_is_refused);
    RUN(threads_compute_beside_each_other);
    return failures;
}
