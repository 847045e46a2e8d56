/*
 * Closed-loop load generator: N connections, one operation in progress on each, for a number of seconds.
 *
 *     loadgen HOST PORT PLAN CONNECTIONS WARMUP_SECONDS SECONDS
 *
 * SIGTERM ends it early, with the results so far.
 *
 * The plan is a file of prebuilt OP_MSG frames (bench/plan.py), so a request only has to be copied, numbered and filled:
 * with new ids and, where it is shaped like a driver's, with the session of its connection, the next transaction number
 * and the newest cluster time of any reply. One thread on epoll, no allocation per operation.
 *
 * An operation is one request and its reply or, if the plan has a getMore, a cursor read to its end. Every reply is
 * checked: it must answer the request, have ok: 1 and no writeErrors. When the time is over, the operations in
 * progress are finished, so that operations longer than the run are measured too.
 *
 * Prints one JSON object. Times are in microseconds.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEADER_BYTES = 16, BODY_AT = 21, MESSAGE_BYTES_MAX = 48000000, EVENTS_MAX = 64, CLUSTER_TIME_BYTES_MAX = 128 };

enum slot_kind { OBJECT_ID, SESSION_ID, TXN_NUMBER, CLUSTER_TIME };

struct slot {
    uint32_t kind;
    uint32_t offset;
};

struct frame {
    uint8_t *bytes;
    uint32_t length;
    struct slot *slots; /* what to replace each time */
    uint32_t slot_count;
};

struct plan {
    struct frame *frames;
    uint32_t frame_count;
    struct frame get_more;   /* length 0 when an operation is a single request */
    uint32_t cursor_id_slot; /* offset of the cursor id in it */
};

struct connection {
    int descriptor;
    uint8_t *output, *input;
    size_t output_length, output_sent, input_length, input_capacity;
    uint32_t request_id;
    uint64_t started;
    uint8_t session_id[16];
    int64_t txn_number;
};

struct samples {
    uint32_t *microseconds;
    size_t count, capacity;
};

static struct plan plan;
static uint64_t measuring_from, deadline, ended;
static uint64_t operations_all, errors;
static volatile sig_atomic_t is_stopped;
static uint32_t last_request_id, next_frame;
static uint64_t unique_counter;
static uint32_t unique_prefix;
static uint8_t cluster_time[CLUSTER_TIME_BYTES_MAX]; /* the newest $clusterTime of any reply; its length is 0 before */
static int active;

static void die(const char *what) {
    fprintf(stderr, "loadgen: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

static void *allocate(void *old, size_t bytes) {
    void *memory = realloc(old, bytes ? bytes : 1);
    if (!memory) die("out of memory");
    return memory;
}

static uint64_t now_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint32_t read_u32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value); /* little-endian machines only, as mongod itself */
    return value;
}

/* The plan */

static void read_exactly(FILE *file, void *into, size_t bytes) {
    if (bytes && fread(into, bytes, 1, file) != 1) die("the plan ends too early");
}

static uint32_t read_number(FILE *file) {
    uint32_t value;
    read_exactly(file, &value, sizeof value);
    return value;
}

static void read_frame(FILE *file, struct frame *frame) {
    frame->length = read_number(file);
    frame->slot_count = read_number(file);
    frame->slots = allocate(NULL, frame->slot_count * sizeof *frame->slots);
    for (uint32_t i = 0; i < frame->slot_count; i++) {
        frame->slots[i].kind = read_number(file);
        frame->slots[i].offset = read_number(file);
    }
    frame->bytes = allocate(NULL, frame->length);
    read_exactly(file, frame->bytes, frame->length);
}

static void read_plan(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) die(path);
    plan.frame_count = read_number(file);
    if (!plan.frame_count) die("an empty plan");
    plan.frames = allocate(NULL, plan.frame_count * sizeof *plan.frames);
    for (uint32_t i = 0; i < plan.frame_count; i++) read_frame(file, &plan.frames[i]);
    plan.cursor_id_slot = read_number(file);
    read_frame(file, &plan.get_more);
    fclose(file);
}

/* Replies */

/* The value of the first element of a document with the given name, or NULL. Replies hold few types. */
static const uint8_t *find_element(const uint8_t *document, const char *name, uint8_t *type) {
    const uint8_t *end = document + read_u32(document), *at = document + 4;
    while (at < end && *at) {
        uint8_t kind = *at++;
        const char *found = (const char *)at;
        const uint8_t *value = at + strlen(found) + 1;
        if (!strcmp(found, name)) {
            *type = kind;
            return value;
        }
        switch (kind) {
        case 0x03: case 0x04: at = value + read_u32(value); break;
        case 0x02: at = value + 4 + read_u32(value); break;
        case 0x05: at = value + 5 + read_u32(value); break;
        case 0x07: at = value + 12; break;
        case 0x08: at = value + 1; break;
        case 0x0A: at = value; break;
        case 0x10: at = value + 4; break;
        case 0x01: case 0x09: case 0x11: case 0x12: at = value + 8; break;
        default: return NULL;
        }
    }
    return NULL;
}

static bool reply_is_good(const struct connection *connection) {
    const uint8_t *body = connection->input + BODY_AT;
    uint8_t type = 0;
    if (read_u32(connection->input + 8) != connection->request_id) die("a reply to another request");
    const uint8_t *ok = find_element(body, "ok", &type);
    double value = 0;
    if (ok && type == 0x01) memcpy(&value, ok, sizeof value);
    bool is_good = value == 1.0 && !find_element(body, "writeErrors", &type);
    if (!is_good && errors == 0) {
        const uint8_t *message = find_element(body, "errmsg", &type);
        fprintf(stderr, "loadgen: first error: %s\n", message ? (const char *)message + 4 : "no errmsg");
    }
    return is_good;
}

static int64_t cursor_id_of(const uint8_t *frame) {
    uint8_t type = 0;
    int64_t id = 0;
    const uint8_t *cursor = find_element(frame + BODY_AT, "cursor", &type);
    const uint8_t *value = cursor ? find_element(cursor, "id", &type) : NULL;
    if (value && type == 0x12) memcpy(&id, value, sizeof id);
    return id;
}

/* Cluster times */

static uint64_t time_of(const uint8_t *document) {
    uint8_t type = 0;
    uint64_t value = 0;
    const uint8_t *time = find_element(document, "clusterTime", &type);
    if (time && type == 0x11) memcpy(&value, time, sizeof value);
    return value;
}

static void note_cluster_time(const uint8_t *frame) {
    uint8_t type = 0;
    const uint8_t *told = find_element(frame + BODY_AT, "$clusterTime", &type);
    if (!told || type != 0x03 || read_u32(told) > CLUSTER_TIME_BYTES_MAX) return;
    if (!read_u32(cluster_time) || time_of(told) > time_of(cluster_time)) memcpy(cluster_time, told, read_u32(told));
}

/* Operations */

static void watch(int epoll, struct connection *connection, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = connection};
    if (epoll_ctl(epoll, operation, connection->descriptor, &event)) die("epoll_ctl");
}

static void flush(int epoll, struct connection *connection) {
    bool was_blocked = connection->output_sent > 0;
    while (connection->output_sent < connection->output_length) {
        ssize_t sent = send(connection->descriptor, connection->output + connection->output_sent,
                            connection->output_length - connection->output_sent, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            watch(epoll, connection, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
            return;
        }
        if (sent < 0) die("send");
        connection->output_sent += (size_t)sent;
    }
    if (was_blocked) watch(epoll, connection, EPOLL_CTL_MOD, EPOLLIN);
}

static void fill(struct connection *connection, const struct slot *slot) {
    uint8_t *at = connection->output + slot->offset;
    switch (slot->kind) {
    case OBJECT_ID:
        unique_counter++;
        memcpy(at, &unique_prefix, 4);
        for (int byte = 0; byte < 8; byte++) at[4 + byte] = (uint8_t)(unique_counter >> (56 - 8 * byte));
        break;
    case SESSION_ID:
        memcpy(at, connection->session_id, sizeof connection->session_id);
        break;
    case TXN_NUMBER:
        connection->txn_number++;
        memcpy(at, &connection->txn_number, sizeof connection->txn_number);
        break;
    case CLUSTER_TIME: /* as long as the placeholder, with a signature or without */
        if (read_u32(cluster_time) == read_u32(at)) memcpy(at, cluster_time, read_u32(cluster_time));
        break;
    default:
        die("a plan with an unknown kind of slot");
    }
}

static void send_frame(int epoll, struct connection *connection, const struct frame *frame, int64_t cursor_id) {
    memcpy(connection->output, frame->bytes, frame->length);
    connection->request_id = ++last_request_id;
    memcpy(connection->output + 4, &connection->request_id, 4);
    for (uint32_t i = 0; i < frame->slot_count; i++) fill(connection, &frame->slots[i]);
    if (cursor_id) memcpy(connection->output + plan.cursor_id_slot, &cursor_id, sizeof cursor_id);
    connection->output_length = frame->length;
    connection->output_sent = connection->input_length = 0;
    flush(epoll, connection);
}

static void start_operation(int epoll, struct connection *connection) {
    connection->started = now_nanoseconds();
    if (is_stopped || connection->started >= deadline) {
        ended = connection->started;
        active--;
        return;
    }
    send_frame(epoll, connection, &plan.frames[next_frame++ % plan.frame_count], 0);
}

static void finish_operation(const struct connection *connection, struct samples *samples) {
    uint64_t microseconds = (now_nanoseconds() - connection->started) / 1000;
    operations_all++;
    if (connection->started < measuring_from) return;
    if (samples->count == samples->capacity) {
        samples->capacity = samples->capacity ? 2 * samples->capacity : 1 << 16;
        samples->microseconds = allocate(samples->microseconds, samples->capacity * sizeof *samples->microseconds);
    }
    samples->microseconds[samples->count++] = (uint32_t)microseconds;
}

static void on_reply(int epoll, struct connection *connection, struct samples *samples) {
    if (!reply_is_good(connection)) errors++;
    note_cluster_time(connection->input);
    int64_t cursor_id = plan.get_more.length ? cursor_id_of(connection->input) : 0;
    if (cursor_id) {
        send_frame(epoll, connection, &plan.get_more, cursor_id);
        return;
    }
    finish_operation(connection, samples);
    start_operation(epoll, connection);
}

static void on_readable(int epoll, struct connection *connection, struct samples *samples) {
    ssize_t received = recv(connection->descriptor, connection->input + connection->input_length,
                            connection->input_capacity - connection->input_length, 0);
    if (received < 0 && errno == EAGAIN) return;
    if (received < 0) die("recv");
    errno = 0;
    if (received == 0) die("the server closed a connection");
    connection->input_length += (size_t)received;
    if (connection->input_length < HEADER_BYTES) return;
    uint32_t length = read_u32(connection->input);
    if (length < BODY_AT + 5 || length > MESSAGE_BYTES_MAX) die("an impossible message length");
    if (length > connection->input_capacity) {
        connection->input_capacity = length;
        connection->input = allocate(connection->input, length);
    }
    if (connection->input_length >= length) on_reply(epoll, connection, samples);
}

static void open_connection(struct connection *connection, const char *host, int port, size_t output_bytes) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int on = 1;
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) die("the host must be an IPv4 address");
    connection->descriptor = socket(AF_INET, SOCK_STREAM, 0);
    if (connection->descriptor < 0) die("socket");
    if (connect(connection->descriptor, (struct sockaddr *)&address, sizeof address)) die("connect");
    setsockopt(connection->descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(connection->descriptor, F_SETFL, O_NONBLOCK);
    if (getrandom(connection->session_id, sizeof connection->session_id, 0) != sizeof connection->session_id)
        die("getrandom");
    connection->output = allocate(NULL, output_bytes);
    connection->input_capacity = 1 << 16;
    connection->input = allocate(NULL, connection->input_capacity);
}

/* Results */

static int compare(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static uint32_t percentile(const struct samples *samples, double share) {
    return samples->count ? samples->microseconds[(size_t)(share * (double)(samples->count - 1))] : 0;
}

static void print_results(struct samples *samples) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double cpu = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                 (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    qsort(samples->microseconds, samples->count, sizeof *samples->microseconds, compare);
    printf("{\"operations\": %zu, \"operations_all\": %llu, \"errors\": %llu, \"seconds\": %.6f, \"cpu_seconds\": %.6f, "
           "\"p50\": %u, \"p95\": %u, \"p99\": %u, \"max\": %u}\n",
           samples->count, (unsigned long long)operations_all, (unsigned long long)errors,
           (double)(ended - measuring_from) / 1e9, cpu, percentile(samples, 0.50), percentile(samples, 0.95),
           percentile(samples, 0.99), percentile(samples, 1.0));
}

static void stop(int number) {
    (void)number;
    is_stopped = 1;
}

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr, "usage: loadgen HOST PORT PLAN CONNECTIONS WARMUP_SECONDS SECONDS\n");
        return 2;
    }
    read_plan(argv[3]);
    size_t output_bytes = plan.get_more.length;
    for (uint32_t i = 0; i < plan.frame_count; i++)
        if (plan.frames[i].length > output_bytes) output_bytes = plan.frames[i].length;

    int count = atoi(argv[4]), epoll = epoll_create1(0);
    if (count < 1 || epoll < 0) die("no connections");
    struct connection *connections = allocate(NULL, (size_t)count * sizeof *connections);
    memset(connections, 0, (size_t)count * sizeof *connections);
    struct samples samples = {0};
    struct epoll_event events[EVENTS_MAX];

    signal(SIGTERM, stop);
    for (int i = 0; i < count; i++) open_connection(&connections[i], argv[1], atoi(argv[2]), output_bytes);
    unique_prefix = (uint32_t)(now_nanoseconds() / 1000) ^ (uint32_t)getpid();
    measuring_from = now_nanoseconds() + (uint64_t)(atof(argv[5]) * 1e9);
    deadline = measuring_from + (uint64_t)(atof(argv[6]) * 1e9);
    active = count;
    for (int i = 0; i < count; i++) {
        watch(epoll, &connections[i], EPOLL_CTL_ADD, EPOLLIN);
        start_operation(epoll, &connections[i]);
    }
    while (active) {
        int ready = epoll_wait(epoll, events, EVENTS_MAX, -1);
        if (ready < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < ready; i++) {
            struct connection *connection = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) flush(epoll, connection);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) on_readable(epoll, connection, &samples);
        }
    }
    print_results(&samples);
    return 0;
}
