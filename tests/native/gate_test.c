/* Tests of the call gate without Python and without CUPTI: frames, callbacks and threads are made up here. */

#include "../../pytest_gpusync/recorders/gate.c"

#include "check.h"

#include <sched.h>
#include <string.h>

enum { ENTRY, EXIT };
enum { COPY = 41, SYNCHRONIZE = 131, EVENT = 137 };

/* ---- the interpreter ---- */

struct frame { /* laid out as `layout` says */
    uint64_t code;
    struct frame *previous;
    uint64_t instruction;
};

static const struct layout layout = {.state_to_frame = 8, .code = 0, .previous = 8, .instruction = 16};
static struct frame user = {0x1000, NULL, 0x1010}, library = {0x2001, &user, 0x2020}, inner = {0x3003, &library, 0x3030};
static struct {
    uint64_t unused;
    struct frame *frame;
} state = {0, &inner};

static uint8_t *thread_state(void) { return (uint8_t *)&state; }

static _Atomic int asked, entered_python;

static int add_pending_call(void *function, void *argument)
{
    (void)function, (void)argument;
    atomic_fetch_add(&asked, 1);
    return 0;
}

static void python(struct gate *g, uint32_t domain, uint32_t id, const struct callback_data *data)
{
    (void)domain, (void)id, (void)data;
    CHECK(gate_inside(g) > 0);
    atomic_fetch_add(&entered_python, 1);
}

static struct gate *fresh(void)
{
    struct gate *g = gate_new(python, add_pending_call, NULL, thread_state);
    gate_open(g);
    asked = entered_python = 0;
    return g;
}

static void call(struct gate *g, uint32_t domain, uint32_t id, uint32_t site)
{
    static const uint64_t parameters[] = {0xd, 0x5, 64, 0xffffffff00000000u | DEVICE_TO_HOST};
    struct callback_data data = {.site = site, .parameters = parameters, .context = 7};
    gate_call(g, domain, id, &data);
}

static void both(struct gate *g, uint32_t domain, uint32_t id)
{
    call(g, domain, id, ENTRY);
    call(g, domain, id, EXIT);
}

/* ---- actions ---- */

static void each_action_does_what_its_name_says(void)
{
    static const struct { uint32_t action, site; int python, logged; } table[] = {
        {IGNORE, ENTRY, 0, 0}, {IGNORE, EXIT, 0, 0}, {PYTHON, ENTRY, 1, 0}, {PYTHON, EXIT, 1, 0},
        {PYTHON_ON_EXIT, ENTRY, 0, 0}, {PYTHON_ON_EXIT, EXIT, 1, 0}, {LOG, ENTRY, 0, 1}, {LOG, EXIT, 0, 1},
    };
    for (size_t row = 0; row < sizeof table / sizeof *table; row++) {
        struct gate *g = fresh();
        gate_set_action(g, RUNTIME, SYNCHRONIZE, table[row].action, 0);
        call(g, RUNTIME, SYNCHRONIZE, table[row].site);
        CHECK(entered_python == table[row].python);
        CHECK(g->returned == (uint64_t)table[row].python);
        CHECK(g->logged == (uint64_t)table[row].logged);
        CHECK(gate_inside(g) == 0);
        free(g);
    }
}

static void calls_outside_the_table_are_ignored(void)
{
    static const uint32_t calls[][2] = {{0, 5}, {3, 5}, {RUNTIME, IDS}, {77, 3}, {RUNTIME, 4000000}};
    struct gate *g = fresh();
    for (size_t row = 0; row < sizeof calls / sizeof *calls; row++)
        call(g, calls[row][0], calls[row][1], EXIT);
    CHECK(entered_python == 0 && g->logged == 0);
    free(g);
}

static void what_a_runtime_call_does_inside_the_driver_is_left_out(void)
{
    struct gate *g = fresh();
    gate_set_action(g, RUNTIME, SYNCHRONIZE, LOG, 0);
    gate_set_action(g, DRIVER, 120, LOG, 0);
    call(g, RUNTIME, SYNCHRONIZE, ENTRY);
    both(g, DRIVER, 120);
    call(g, RUNTIME, SYNCHRONIZE, EXIT);
    CHECK(g->logged == 2);
    both(g, DRIVER, 120);
    CHECK(g->logged == 4);
    free(g);
}

static void a_closed_gate_lets_nothing_in(void)
{
    struct gate *g = fresh();
    gate_set_action(g, RUNTIME, SYNCHRONIZE, PYTHON, 0);
    gate_close(g);
    both(g, RUNTIME, SYNCHRONIZE);
    CHECK(entered_python == 0);
    gate_open(g);
    both(g, RUNTIME, SYNCHRONIZE);
    CHECK(entered_python == 2);
    free(g);
}

static void a_runtime_call_that_was_not_seen_to_end_hides_no_driver_call_later(void)
{
    struct gate *g = fresh();
    gate_set_action(g, RUNTIME, SYNCHRONIZE, LOG, 0);
    gate_set_action(g, DRIVER, 120, LOG, 0);
    call(g, RUNTIME, SYNCHRONIZE, ENTRY);
    gate_close(g);
    call(g, RUNTIME, SYNCHRONIZE, EXIT);
    gate_open(g);
    both(g, DRIVER, 120);
    CHECK(g->logged == 3);
    free(g);
}

/* ---- the log ---- */

static void the_interpreter_is_asked_once_until_it_comes(void)
{
    struct gate *g = fresh();
    gate_set_action(g, RUNTIME, EVENT, LOG, 0);
    for (int n = 0; n < 5; n++)
        both(g, RUNTIME, EVENT);
    CHECK(asked == 1);
    gate_let_ask(g);
    both(g, RUNTIME, EVENT);
    CHECK(asked == 2);
    free(g);
}

static void a_logged_call_tells_its_thread_and_times(void)
{
    struct gate *g = fresh();
    struct logged_call read[4];
    uint64_t next = 0, began = now(), entered, left;
    gate_set_action(g, DRIVER, 9, LOG, 0);
    both(g, DRIVER, 9);
    uint64_t ended = now();
    CHECK(gate_read_log(g, &next, read, 4) == 2 && next == 2);
    for (int n = 0; n < 2; n++) {
        CHECK(read[n].id == 9 && read[n].domain == DRIVER && read[n].site == (uint16_t)n && read[n].context == 7);
        CHECK(read[n].thread == (uint64_t)pthread_self());
        CHECK(began <= read[n].time && read[n].time <= ended);
    }
    gate_times(g, this_thread(), &entered, &left);
    CHECK(entered == read[0].time && left == read[1].time);
    CHECK(gate_read_log(g, &next, read, 4) == 0 && next == 2);
    free(g);
}

static void records_that_were_overwritten_are_passed_over(void)
{
    struct gate *g = fresh();
    struct logged_call *read = malloc(2 * RECORDS * sizeof *read);
    uint64_t next = 0;
    gate_set_action(g, DRIVER, 9, LOG, 0);
    for (int n = 0; n < RECORDS / 2 + 5; n++)
        both(g, DRIVER, 9);
    uint32_t count = gate_read_log(g, &next, read, 2 * RECORDS);
    CHECK(count == RECORDS && next == RECORDS + 10);
    free(read);
    free(g);
}

/* ---- notes ---- */

static struct gate *noting(void)
{
    struct gate *g = fresh();
    gate_set_action(g, RUNTIME, COPY, PYTHON_ON_EXIT, MOST_WORDS);
    gate_note_thread(g, this_thread(), &layout);
    return g;
}

static uint64_t five(void) { return 5; }

static void a_note_has_what_the_call_was_told_and_where_it_came_from(void)
{
    struct gate *g = noting();
    struct note note;
    gate_count_operators(g, five);
    CHECK(gate_learn_place(g, 0, user.code));
    both(g, RUNTIME, COPY);
    CHECK(entered_python == 1 && g->noted == 1);
    CHECK(gate_take_notes(g, 0, &note, 1) == 1);
    CHECK(note.id == COPY && note.domain == RUNTIME && note.context == 7 && note.sequence == 0 && note.operators == 5);
    CHECK(note.words[0] == 0xd && note.words[1] == 0x5 && note.words[2] == 64 && note.words[3] == DEVICE_TO_HOST);
    CHECK(note.frame == (uint64_t)&inner && note.instruction == inner.instruction && note.place != 0);
    CHECK(note.entered <= note.left);
    CHECK(gate_take_notes(g, 1, &note, 1) == 0);
    free(g);
}

static void a_code_object_is_known_whatever_the_tag_of_its_pointer(void)
{
    struct gate *g = noting();
    struct note notes[2];
    gate_learn_place(g, 0, 0x3000); /* of `inner` */
    both(g, RUNTIME, COPY);
    inner.code = 0x3001;
    both(g, RUNTIME, COPY);
    inner.code = 0x3003;
    CHECK(gate_take_notes(g, 0, notes, 2) == 2);
    CHECK(notes[0].place != 0 && notes[0].place == notes[1].place);
    free(g);
}

static void a_place_that_is_known_does_not_enter_python(void)
{
    struct gate *g = noting();
    struct note note;
    gate_learn_place(g, 0, user.code);
    both(g, RUNTIME, COPY);
    gate_take_notes(g, 0, &note, 1);
    gate_learn_place(g, note.place, user.code);
    both(g, RUNTIME, COPY);
    CHECK(entered_python == 1);
    uint64_t known = note.place;
    library.instruction += 2; /* another call in the library */
    both(g, RUNTIME, COPY);
    CHECK(entered_python == 2);
    library.instruction -= 2;
    CHECK(gate_take_notes(g, 1, &note, 1) == 1 && note.place == known);
    CHECK(gate_take_notes(g, 2, &note, 1) == 1 && note.place != known && note.place != 0);
    gate_forget_places(g);
    both(g, RUNTIME, COPY);
    CHECK(entered_python == 3);
    free(g);
}

static void a_thread_without_frames_has_no_place(void)
{
    struct gate *g = noting();
    struct note note;
    state.frame = NULL;
    both(g, RUNTIME, COPY);
    state.frame = &inner;
    CHECK(gate_take_notes(g, 0, &note, 1) == 1);
    CHECK(note.place == 0 && note.frame == 0 && note.instruction == 0);
    free(g);
}

static void a_stack_without_a_known_end_has_no_place(void)
{
    static struct frame deep[3 * MOST_FRAMES];
    struct gate *g = noting();
    struct note note;
    for (int n = 0; n < 3 * MOST_FRAMES - 1; n++)
        deep[n].previous = &deep[n + 1];
    deep[MOST_FRAMES].code = user.code; /* one frame too far */
    gate_learn_place(g, 0, user.code);
    state.frame = deep;
    both(g, RUNTIME, COPY);
    state.frame = &inner;
    CHECK(gate_take_notes(g, 0, &note, 1) == 1 && note.place == 0 && note.frame == (uint64_t)deep);
    free(g);
}

static void frames_are_reached_through_the_structure_of_older_versions(void)
{
    static struct { uint64_t unused, frame; } cframe;
    struct layout older = layout;
    struct gate *g = noting();
    struct note note;
    older.has_cframe = 1;
    older.cframe_to_frame = 8;
    cframe.frame = (uint64_t)&inner;
    state.frame = (struct frame *)&cframe;
    gate_note_thread(g, this_thread(), &older);
    both(g, RUNTIME, COPY);
    state.frame = &inner;
    CHECK(gate_take_notes(g, 0, &note, 1) == 1 && note.frame == (uint64_t)&inner);
    free(g);
}

static void unread_notes_are_not_overwritten(void)
{
    struct gate *g = noting();
    struct note *notes = malloc(NOTES * sizeof *notes);
    gate_learn_place(g, 0, user.code);
    both(g, RUNTIME, COPY);
    CHECK(gate_take_notes(g, 0, notes, NOTES) == 1);
    gate_learn_place(g, notes[0].place, user.code);
    for (int n = 1; n < NOTES / 2 - 1; n++)
        both(g, RUNTIME, COPY);
    CHECK(entered_python == 1);
    for (int n = NOTES / 2 - 1; n < NOTES; n++)
        both(g, RUNTIME, COPY);
    CHECK(entered_python == 1 + NOTES / 2 + 1); /* half full: Python is entered, which reads them */
    CHECK(g->noted == NOTES);
    both(g, RUNTIME, COPY);
    CHECK(g->noted == NOTES && entered_python == 1 + NOTES / 2 + 2); /* full */
    CHECK(gate_take_notes(g, 0, notes, NOTES) == NOTES);
    for (int n = 0; n < NOTES; n++)
        CHECK(notes[n].sequence == (uint64_t)n);
    CHECK(gate_take_notes(g, NOTES, notes, NOTES) == 0);
    both(g, RUNTIME, COPY);
    CHECK(g->noted == NOTES + 1);
    free(notes);
    free(g);
}

static void a_table_that_is_half_full_takes_no_more(void)
{
    struct gate *g = noting();
    for (uint64_t place = 1; place <= PLACES / 2; place++)
        CHECK(gate_learn_place(g, place, user.code));
    CHECK(!gate_learn_place(g, PLACES / 2 + 1, user.code));
    CHECK(gate_learn_place(g, 1, user.code));
    gate_forget_places(g);
    CHECK(gate_learn_place(g, PLACES / 2 + 1, user.code));
    free(g);
}

static void copies_between_devices_are_left_out(void)
{
    static const uint64_t parameters[] = {1, 2, 3, 3};
    struct callback_data data = {.site = EXIT, .parameters = parameters};
    struct gate *g = noting();
    gate_call(g, RUNTIME, COPY, &data);
    CHECK(g->noted == 0 && entered_python == 0);
    data.parameters = NULL; /* unknown: it may wait */
    gate_call(g, RUNTIME, COPY, &data);
    CHECK(g->noted == 1 && entered_python == 1);
    free(g);
}

/* ---- threads ---- */

enum { THREADS = 4, CALLS = 3000 };

static struct gate *shared;
static _Atomic int stop;

static void *log_calls(void *unused)
{
    for (int n = 0; n < CALLS; n++)
        both(shared, RUNTIME, EVENT);
    return unused;
}

static void threads_log_without_losing_a_call(void)
{
    struct logged_call read[64];
    pthread_t threads[THREADS];
    uint64_t next = 0, sites[2] = {0, 0};
    shared = fresh();
    gate_set_action(shared, RUNTIME, EVENT, LOG, 0);
    for (int n = 0; n < THREADS; n++)
        CHECK(pthread_create(&threads[n], NULL, log_calls, NULL) == 0);
    while (next < 2 * THREADS * CALLS) {
        uint64_t before = next;
        uint32_t count = gate_read_log(shared, &next, read, 64);
        CHECK(next - before == count);
        for (uint32_t n = 0; n < count; n++) {
            CHECK(read[n].id == EVENT && read[n].domain == RUNTIME && read[n].context == 7 && read[n].time);
            sites[read[n].site & 1]++;
        }
    }
    for (int n = 0; n < THREADS; n++)
        pthread_join(threads[n], NULL);
    CHECK(sites[0] == THREADS * CALLS && sites[1] == THREADS * CALLS);
    free(shared);
}

static void *log_for_ever(void *unused)
{
    struct callback_data data = {.context = this_thread()};
    while (!stop) {
        data.site = !data.site;
        gate_call(shared, RUNTIME, EVENT, &data);
    }
    return unused;
}

/* The writers overtake the reader again and again: what it gets is whole nevertheless. */
static void records_that_are_overwritten_while_they_are_read_are_whole(void)
{
    struct logged_call read[64];
    pthread_t threads[THREADS];
    uint64_t next = 0;
    shared = fresh();
    gate_set_action(shared, RUNTIME, EVENT, LOG, 0);
    stop = 0;
    for (int n = 0; n < THREADS; n++)
        CHECK(pthread_create(&threads[n], NULL, log_for_ever, NULL) == 0);
    for (uint64_t until = now() + 500000000; now() < until;) {
        if (shared->logged < next + RECORDS - 32) {
            sched_yield(); /* until they are about to write where the next are read */
            continue;
        }
        uint64_t before = next;
        uint32_t count = gate_read_log(shared, &next, read, 64);
        CHECK(next - before >= count);
        for (uint32_t n = 0; n < count; n++)
            CHECK(read[n].id == EVENT && read[n].domain == RUNTIME && read[n].site <= 1 && read[n].context == read[n].thread);
    }
    stop = 1;
    for (int n = 0; n < THREADS; n++)
        pthread_join(threads[n], NULL);
    free(shared);
}

static void *read_notes(void *unused)
{
    struct note notes[16];
    uint64_t next = 0;
    while (next < 3 * NOTES)
        for (uint32_t count = gate_take_notes(shared, next, notes, 16), n = 0; n < count; n++, next++)
            CHECK(notes[n].sequence == next && notes[n].words[2] == 64 && notes[n].frame == (uint64_t)&inner);
    return unused;
}

static void another_thread_may_read_the_notes(void)
{
    pthread_t reader;
    shared = noting();
    CHECK(pthread_create(&reader, NULL, read_notes, NULL) == 0);
    while (shared->noted < 3 * NOTES)
        both(shared, RUNTIME, COPY);
    pthread_join(reader, NULL);
    free(shared);
}

static uint64_t written_inside; /* not atomic: only the gate keeps the two sides apart */

static void write_inside(struct gate *g, uint32_t domain, uint32_t id, const struct callback_data *data)
{
    (void)g, (void)domain, (void)id, (void)data;
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one_at_a_time);
    written_inside++;
    pthread_mutex_unlock(&one_at_a_time);
}

static void *enter_python_for_ever(void *unused)
{
    while (!stop)
        call(shared, RUNTIME, SYNCHRONIZE, ENTRY);
    return unused;
}

static void nobody_is_inside_after_the_gate_was_closed_and_has_emptied(void)
{
    pthread_t threads[THREADS];
    shared = gate_new(write_inside, add_pending_call, NULL, thread_state);
    gate_set_action(shared, RUNTIME, SYNCHRONIZE, PYTHON, 0);
    stop = 0;
    for (int n = 0; n < THREADS; n++)
        CHECK(pthread_create(&threads[n], NULL, enter_python_for_ever, NULL) == 0);
    for (int round = 0; round < 50; round++) {
        uint64_t returned = atomic_load(&shared->returned);
        gate_open(shared);
        while (atomic_load(&shared->returned) == returned)
            sched_yield();
        gate_close(shared);
        while (gate_inside(shared))
            sched_yield();
        uint64_t seen = ++written_inside;
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        CHECK(written_inside == seen);
    }
    stop = 1;
    for (int n = 0; n < THREADS; n++)
        pthread_join(threads[n], NULL);
    free(shared);
}

/* ---- what it costs ---- */

static void print_cost(void)
{
    struct gate *g = noting();
    struct note *notes = malloc(NOTES * sizeof *notes);
    gate_learn_place(g, 0, user.code);
    both(g, RUNTIME, COPY);
    gate_take_notes(g, 0, notes, 1);
    gate_learn_place(g, notes[0].place, user.code);
    uint64_t best = UINT64_MAX, next = 1;
    for (int round = 0; round < 50; round++) {
        uint64_t began = now();
        for (int n = 0; n < 1000; n++)
            both(g, RUNTIME, COPY);
        uint64_t took = now() - began;
        best = took < best ? took : best;
        next += gate_take_notes(g, next, notes, NOTES);
        gate_take_notes(g, next, notes, 0);
    }
    printf("a noted call costs %.3f us\n", (double)best / 1e6);
    free(notes);
    free(g);
}

int main(void)
{
    RUN(each_action_does_what_its_name_says);
    RUN(calls_outside_the_table_are_ignored);
    RUN(what_a_runtime_call_does_inside_the_driver_is_left_out);
    RUN(a_closed_gate_lets_nothing_in);
    RUN(a_runtime_call_that_was_not_seen_to_end_hides_no_driver_call_later);
    RUN(the_interpreter_is_asked_once_until_it_comes);
    RUN(a_logged_call_tells_its_thread_and_times);
    RUN(records_that_were_overwritten_are_passed_over);
    RUN(a_note_has_what_the_call_was_told_and_where_it_came_from);
    RUN(a_code_object_is_known_whatever_the_tag_of_its_pointer);
    RUN(a_place_that_is_known_does_not_enter_python);
    RUN(a_thread_without_frames_has_no_place);
    RUN(a_stack_without_a_known_end_has_no_place);
    RUN(frames_are_reached_through_the_structure_of_older_versions);
    RUN(unread_notes_are_not_overwritten);
    RUN(a_table_that_is_half_full_takes_no_more);
    RUN(copies_between_devices_are_left_out);
    RUN(threads_log_without_losing_a_call);
    RUN(records_that_are_overwritten_while_they_are_read_are_whole);
    RUN(another_thread_may_read_the_notes);
    RUN(nobody_is_inside_after_the_gate_was_closed_and_has_emptied);
    print_cost();
    return failures;
}
