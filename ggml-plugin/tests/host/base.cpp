// What the plugin asks of ggml's base library, and buffers in the CPU's memory: a library of as few lines as the
// plugin's questions. The test compiles it with OVERHEAD_BYTES, NAMES and VERSION.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace {

std::mutex one_at_a_time;
char lines[1 << 20];
size_t used;

struct table {
    void * entries[11];
};

struct buffer {
    table functions;
    void * type;
    void * context;
    size_t bytes;
    int usage;
};

// Where a tensor has its address.
char * data(const void * tensor) {
    char * address;
    memcpy(&address, static_cast<const char *>(tensor) + 248, sizeof address);
    return address;
}

const char * type_name(void *) { return "CPU"; }
size_t alignment(void *) { return 32; }
bool is_host(void *) { return true; }

void free_context(buffer * self) { free(self->context); }
void * base(buffer * self) { return self->context; }
void fill(buffer *, void * tensor, unsigned char value, size_t offset, size_t bytes) {
    memset(data(tensor) + offset, value, bytes);
}
void set(buffer *, void * tensor, const void * source, size_t offset, size_t bytes) {
    memcpy(data(tensor) + offset, source, bytes);
}
void get(buffer *, const void * tensor, void * target, size_t offset, size_t bytes) {
    memcpy(target, data(tensor) + offset, bytes);
}
void clear(buffer * self, unsigned char value) { memset(self->context, value, self->bytes); }

} // namespace

extern "C" {

size_t ggml_tensor_overhead() { return OVERHEAD_BYTES; }

const char * ggml_op_name(int op) {
    static const char * const names[] = {NAMES};
    return names[op];
}

void ggml_log_internal(int, const char * format, ...) {
    std::lock_guard<std::mutex> guard(one_at_a_time);
    va_list arguments;
    va_start(arguments, format);
    const int written = vsnprintf(lines + used, sizeof lines - used, format, arguments);
    va_end(arguments);
    used = used + written < sizeof lines ? used + written : sizeof lines - 1;
}

// Everything that was logged.
const char * base_lines() { return lines; }

buffer * ggml_backend_buffer_init(void * type, table functions, void * context, size_t bytes) {
    return new buffer{functions, type, context, bytes, 0};
}

static buffer * allocate(void * type, size_t bytes) {
    void * context = aligned_alloc(64, (bytes / 64 + 1) * 64);
    const table functions = {{
        reinterpret_cast<void *>(free_context), reinterpret_cast<void *>(base), nullptr, reinterpret_cast<void *>(fill),
        reinterpret_cast<void *>(set), reinterpret_cast<void *>(get), nullptr, nullptr, nullptr,
        reinterpret_cast<void *>(clear), nullptr,
    }};
    return ggml_backend_buffer_init(type, functions, context, bytes);
}

void * ggml_backend_cpu_buffer_type() {
    void * const name = reinterpret_cast<void *>(type_name);
    void * const make = reinterpret_cast<void *>(allocate);
    void * const aligned = reinterpret_cast<void *>(alignment);
    void * const reachable = reinterpret_cast<void *>(is_host);
#if VERSION == 2
    static void * type[] = {name, make, aligned, nullptr, nullptr, reachable, nullptr, nullptr};
#else
    static void * type[] = {name, make, nullptr, aligned, nullptr, nullptr, nullptr, reachable, nullptr, nullptr};
#endif
    return type;
}

// Names whose presence tells the version.
size_t ggml_backend_buft_get_alloc_size(void *, const void *) { return 0; }
#if VERSION == 3
buffer * ggml_backend_buft_alloc_buffer_n(void *, void **, size_t) { return nullptr; }
#endif

} // extern "C"
