// libllama's calls that build graphs, under the model's head lock; and, for code without the GIL, with C++ exceptions
// turned into a return code.
#pragma once

#include <llama.h>

#include <shared_mutex>

#include "head_lock.hpp"

namespace pyspec {

constexpr int32_t process_threw = -100;

// llama_process(DECODE), then waits for the result, so that time spent here is time spent decoding. Whoever calls it
// holds the head lock.
inline int32_t decode_and_wait_locked(llama_context * ctx, llama_batch_ext * batch) noexcept {
    try {
        const int32_t code = llama_process(ctx, LLAMA_PROCESS_TYPE_DECODE, batch);
        if (code == 0) {
            llama_synchronize(ctx);
        }
        return code;
    } catch (...) {
        return process_threw;
    }
}

inline int32_t decode_and_wait(HeadLock & lock, llama_context * ctx, llama_batch_ext * batch) noexcept {
    const std::shared_lock<std::shared_mutex> hold(lock.mutex());
    return decode_and_wait_locked(ctx, batch);
}

// The plain calls; they throw what libllama throws.

inline int32_t process(HeadLock & lock, llama_context * ctx, llama_process_type type, llama_batch_ext * batch) {
    const std::shared_lock<std::shared_mutex> hold(lock.mutex());
    return llama_process(ctx, type, batch);
}

inline int32_t decode(HeadLock & lock, llama_context * ctx, const llama_batch & batch) {
    const std::shared_lock<std::shared_mutex> hold(lock.mutex());
    return llama_decode(ctx, batch);
}

inline llama_context * new_context(HeadLock & lock, llama_model * model, const llama_context_params & params) {
    const std::shared_lock<std::shared_mutex> hold(lock.mutex());
    return llama_init_from_model(model, params);
}

}  // namespace pyspec
