# libllama as Cython sees it: llama.h in its own order, the parts of ggml it needs, then llama-ext.h.
#
# Everything is nogil. `except +` marks the calls out of which a C++ exception can come; the callers
# turn it into one of pyspec.errors. Deprecated functions, training and user-supplied tensors are left out.

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport FILE
from libcpp cimport bool as cpp_bool
from libcpp.map cimport map as cpp_map


# --- ggml ---------------------------------------------------------------------------------------------

cdef extern from "ggml.h" nogil:
    enum ggml_type:
        GGML_TYPE_F32
        GGML_TYPE_F16
        GGML_TYPE_Q4_0
        GGML_TYPE_Q4_1
        GGML_TYPE_Q5_0
        GGML_TYPE_Q5_1
        GGML_TYPE_Q8_0
        GGML_TYPE_Q8_1
        GGML_TYPE_IQ4_NL
        GGML_TYPE_I32
        GGML_TYPE_I64
        GGML_TYPE_BF16
        GGML_TYPE_COUNT

    enum ggml_log_level:
        GGML_LOG_LEVEL_NONE
        GGML_LOG_LEVEL_DEBUG
        GGML_LOG_LEVEL_INFO
        GGML_LOG_LEVEL_WARN
        GGML_LOG_LEVEL_ERROR
        GGML_LOG_LEVEL_CONT

    ctypedef cpp_bool (*ggml_abort_callback)(void * data)
    ctypedef void (*ggml_log_callback)(ggml_log_level level, const char * text, void * user_data)

    struct ggml_tensor:
        pass
    struct ggml_cgraph:
        pass

    const char * ggml_version()
    const char * ggml_commit()
    int64_t ggml_blck_size(ggml_type type)
    size_t ggml_type_size(ggml_type type)
    size_t ggml_row_size(ggml_type type, int64_t ne)
    const char * ggml_type_name(ggml_type type)
    cpp_bool ggml_is_quantized(ggml_type type)


cdef extern from "ggml-cpu.h" nogil:
    enum ggml_numa_strategy:
        GGML_NUMA_STRATEGY_DISABLED
        GGML_NUMA_STRATEGY_DISTRIBUTE
        GGML_NUMA_STRATEGY_ISOLATE
        GGML_NUMA_STRATEGY_NUMACTL

    struct ggml_threadpool:
        pass
    ctypedef ggml_threadpool * ggml_threadpool_t


cdef extern from "ggml-backend.h" nogil:
    struct ggml_backend_buffer_type:
        pass
    struct ggml_backend_reg:
        pass
    struct ggml_backend_device:
        pass
    ctypedef ggml_backend_buffer_type * ggml_backend_buffer_type_t
    ctypedef ggml_backend_reg * ggml_backend_reg_t
    ctypedef ggml_backend_device * ggml_backend_dev_t

    enum ggml_backend_dev_type_t "ggml_backend_dev_type":
        GGML_BACKEND_DEVICE_TYPE_CPU
        GGML_BACKEND_DEVICE_TYPE_GPU
        GGML_BACKEND_DEVICE_TYPE_IGPU
        GGML_BACKEND_DEVICE_TYPE_ACCEL
        GGML_BACKEND_DEVICE_TYPE_META

    ctypedef cpp_bool (*ggml_backend_sched_eval_callback)(ggml_tensor * t, bool ask, void * user_data)

    struct ggml_backend_feature:
        const char * name
        const char * value
    ctypedef ggml_backend_feature * (*ggml_backend_get_features_t)(ggml_backend_reg_t reg)

    const char * ggml_backend_buft_name(ggml_backend_buffer_type_t buft)
    cpp_bool ggml_backend_buft_is_host(ggml_backend_buffer_type_t buft)

    const char * ggml_backend_dev_name(ggml_backend_dev_t device)
    const char * ggml_backend_dev_description(ggml_backend_dev_t device)
    void ggml_backend_dev_memory(ggml_backend_dev_t device, size_t * free, size_t * total) except +
    ggml_backend_dev_type_t ggml_backend_dev_type(ggml_backend_dev_t device)
    ggml_backend_reg_t ggml_backend_dev_backend_reg(ggml_backend_dev_t device)

    const char * ggml_backend_reg_name(ggml_backend_reg_t reg)
    size_t ggml_backend_reg_dev_count(ggml_backend_reg_t reg)
    void * ggml_backend_reg_get_proc_address(ggml_backend_reg_t reg, const char * name)
    size_t ggml_backend_reg_count() except +
    ggml_backend_reg_t ggml_backend_reg_get(size_t index) except +
    size_t ggml_backend_dev_count() except +
    ggml_backend_dev_t ggml_backend_dev_get(size_t index) except +
    ggml_backend_dev_t ggml_backend_dev_by_name(const char * name) except +
    void ggml_backend_load_all() except +
    void ggml_backend_load_all_from_path(const char * dir_path) except +


# --- llama.h ------------------------------------------------------------------------------------------

cdef extern from "llama.h" nogil:
    const uint32_t LLAMA_DEFAULT_SEED
    const int32_t LLAMA_TOKEN_NULL
    const uint32_t LLAMA_SESSION_MAGIC
    const uint32_t LLAMA_SESSION_VERSION
    const uint32_t LLAMA_STATE_SEQ_MAGIC
    const uint32_t LLAMA_STATE_SEQ_VERSION

    struct llama_vocab:
        pass
    struct llama_model:
        pass
    struct llama_context:
        pass
    struct llama_memory_i:
        pass
    struct llama_batch_ext:
        pass
    struct llama_adapter_lora:
        pass
    ctypedef llama_memory_i * llama_memory_t

    ctypedef int32_t llama_pos
    ctypedef int32_t llama_token
    ctypedef int32_t llama_seq_id

    # llama_vocab_type and llama_pooling_type are functions as well: the enums get another name here.
    enum llama_vocab_type_t "llama_vocab_type":
        LLAMA_VOCAB_TYPE_NONE
        LLAMA_VOCAB_TYPE_SPM
        LLAMA_VOCAB_TYPE_BPE
        LLAMA_VOCAB_TYPE_WPM
        LLAMA_VOCAB_TYPE_UGM
        LLAMA_VOCAB_TYPE_RWKV
        LLAMA_VOCAB_TYPE_PLAMO2
        LLAMA_VOCAB_TYPE_TEST

    enum llama_rope_type:
        LLAMA_ROPE_TYPE_NONE
        LLAMA_ROPE_TYPE_NORM
        LLAMA_ROPE_TYPE_NEOX
        LLAMA_ROPE_TYPE_MROPE
        LLAMA_ROPE_TYPE_IMROPE
        LLAMA_ROPE_TYPE_VISION

    enum llama_token_attr:
        LLAMA_TOKEN_ATTR_UNDEFINED
        LLAMA_TOKEN_ATTR_UNKNOWN
        LLAMA_TOKEN_ATTR_UNUSED
        LLAMA_TOKEN_ATTR_NORMAL
        LLAMA_TOKEN_ATTR_CONTROL
        LLAMA_TOKEN_ATTR_USER_DEFINED
        LLAMA_TOKEN_ATTR_BYTE
        LLAMA_TOKEN_ATTR_NORMALIZED
        LLAMA_TOKEN_ATTR_LSTRIP
        LLAMA_TOKEN_ATTR_RSTRIP
        LLAMA_TOKEN_ATTR_SINGLE_WORD

    enum llama_ftype:
        LLAMA_FTYPE_ALL_F32
        LLAMA_FTYPE_MOSTLY_F16
        LLAMA_FTYPE_MOSTLY_Q4_0
        LLAMA_FTYPE_MOSTLY_Q4_1
        LLAMA_FTYPE_MOSTLY_Q8_0
        LLAMA_FTYPE_MOSTLY_Q5_0
        LLAMA_FTYPE_MOSTLY_Q5_1
        LLAMA_FTYPE_MOSTLY_Q2_K
        LLAMA_FTYPE_MOSTLY_Q3_K_S
        LLAMA_FTYPE_MOSTLY_Q3_K_M
        LLAMA_FTYPE_MOSTLY_Q3_K_L
        LLAMA_FTYPE_MOSTLY_Q4_K_S
        LLAMA_FTYPE_MOSTLY_Q4_K_M
        LLAMA_FTYPE_MOSTLY_Q5_K_S
        LLAMA_FTYPE_MOSTLY_Q5_K_M
        LLAMA_FTYPE_MOSTLY_Q6_K
        LLAMA_FTYPE_MOSTLY_IQ2_XXS
        LLAMA_FTYPE_MOSTLY_IQ2_XS
        LLAMA_FTYPE_MOSTLY_Q2_K_S
        LLAMA_FTYPE_MOSTLY_IQ3_XS
        LLAMA_FTYPE_MOSTLY_IQ3_XXS
        LLAMA_FTYPE_MOSTLY_IQ1_S
        LLAMA_FTYPE_MOSTLY_IQ4_NL
        LLAMA_FTYPE_MOSTLY_IQ3_S
        LLAMA_FTYPE_MOSTLY_IQ3_M
        LLAMA_FTYPE_MOSTLY_IQ2_S
        LLAMA_FTYPE_MOSTLY_IQ2_M
        LLAMA_FTYPE_MOSTLY_IQ4_XS
        LLAMA_FTYPE_MOSTLY_IQ1_M
        LLAMA_FTYPE_MOSTLY_BF16
        LLAMA_FTYPE_MOSTLY_TQ1_0
        LLAMA_FTYPE_MOSTLY_TQ2_0
        LLAMA_FTYPE_MOSTLY_MXFP4_MOE
        LLAMA_FTYPE_MOSTLY_NVFP4
        LLAMA_FTYPE_MOSTLY_Q1_0
        LLAMA_FTYPE_MOSTLY_Q2_0
        LLAMA_FTYPE_GUESSED

    const char * llama_ftype_name(llama_ftype ftype) except +

    enum llama_rope_scaling_type:
        LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED
        LLAMA_ROPE_SCALING_TYPE_NONE
        LLAMA_ROPE_SCALING_TYPE_LINEAR
        LLAMA_ROPE_SCALING_TYPE_YARN
        LLAMA_ROPE_SCALING_TYPE_LONGROPE

    enum llama_pooling_type_t "llama_pooling_type":
        LLAMA_POOLING_TYPE_UNSPECIFIED
        LLAMA_POOLING_TYPE_NONE
        LLAMA_POOLING_TYPE_MEAN
        LLAMA_POOLING_TYPE_CLS
        LLAMA_POOLING_TYPE_LAST
        LLAMA_POOLING_TYPE_RANK

    enum llama_attention_type:
        LLAMA_ATTENTION_TYPE_UNSPECIFIED
        LLAMA_ATTENTION_TYPE_CAUSAL
        LLAMA_ATTENTION_TYPE_NON_CAUSAL

    enum llama_flash_attn_type:
        LLAMA_FLASH_ATTN_TYPE_AUTO
        LLAMA_FLASH_ATTN_TYPE_DISABLED
        LLAMA_FLASH_ATTN_TYPE_ENABLED

    enum llama_split_mode:
        LLAMA_SPLIT_MODE_NONE
        LLAMA_SPLIT_MODE_LAYER
        LLAMA_SPLIT_MODE_ROW
        LLAMA_SPLIT_MODE_TENSOR

    enum llama_load_mode:
        LLAMA_LOAD_MODE_AUTO
        LLAMA_LOAD_MODE_NONE
        LLAMA_LOAD_MODE_MMAP
        LLAMA_LOAD_MODE_MLOCK
        LLAMA_LOAD_MODE_MMAP_MLOCK
        LLAMA_LOAD_MODE_DIRECT_IO

    enum llama_lazy_mode:
        LLAMA_LAZY_MODE_OFF
        LLAMA_LAZY_MODE_AUTO
        LLAMA_LAZY_MODE_ON

    enum llama_context_type:
        LLAMA_CONTEXT_TYPE_DEFAULT
        LLAMA_CONTEXT_TYPE_MTP

    ctypedef struct llama_token_data:
        llama_token id
        float logit
        float p

    ctypedef struct llama_token_data_array:
        llama_token_data * data
        size_t size
        int64_t selected
        cpp_bool sorted

    ctypedef cpp_bool (*llama_progress_callback)(float progress, void * user_data)

    ctypedef struct llama_batch:
        int32_t n_tokens
        llama_token * token
        float * embd
        llama_pos * pos
        int32_t * n_seq_id
        llama_seq_id ** seq_id
        int8_t * logits

    enum llama_model_kv_override_type:
        LLAMA_KV_OVERRIDE_TYPE_INT
        LLAMA_KV_OVERRIDE_TYPE_FLOAT
        LLAMA_KV_OVERRIDE_TYPE_BOOL
        LLAMA_KV_OVERRIDE_TYPE_STR

    enum llama_model_meta_key:
        LLAMA_MODEL_META_KEY_SAMPLING_SEQUENCE
        LLAMA_MODEL_META_KEY_SAMPLING_TOP_K
        LLAMA_MODEL_META_KEY_SAMPLING_TOP_P
        LLAMA_MODEL_META_KEY_SAMPLING_MIN_P
        LLAMA_MODEL_META_KEY_SAMPLING_XTC_PROBABILITY
        LLAMA_MODEL_META_KEY_SAMPLING_XTC_THRESHOLD
        LLAMA_MODEL_META_KEY_SAMPLING_TEMP
        LLAMA_MODEL_META_KEY_SAMPLING_PENALTY_LAST_N
        LLAMA_MODEL_META_KEY_SAMPLING_PENALTY_REPEAT
        LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT
        LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT_TAU
        LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT_ETA

    enum llama_process_type:
        LLAMA_PROCESS_TYPE_ENCODE
        LLAMA_PROCESS_TYPE_DECODE

    struct llama_model_kv_override:
        llama_model_kv_override_type tag
        char key[128]
        int64_t val_i64
        double val_f64
        cpp_bool val_bool
        char val_str[128]

    struct llama_model_tensor_buft_override:
        const char * pattern
        ggml_backend_buffer_type_t buft

    struct llama_model_params:
        ggml_backend_dev_t * devices
        const llama_model_tensor_buft_override * tensor_buft_overrides
        int32_t n_gpu_layers
        llama_split_mode split_mode
        llama_load_mode load_mode
        llama_lazy_mode lazy_mode
        int32_t main_gpu
        const float * tensor_split
        llama_progress_callback progress_callback
        void * progress_callback_user_data
        const llama_model_kv_override * kv_overrides
        cpp_bool vocab_only
        cpp_bool check_tensors
        cpp_bool use_extra_bufts
        cpp_bool no_host
        cpp_bool no_alloc
        cpp_bool load_mtp

    struct llama_sampler_seq_config:
        llama_seq_id seq_id
        llama_sampler * sampler

    struct llama_context_params:
        uint32_t n_ctx
        uint32_t n_batch
        uint32_t n_ubatch
        uint32_t n_seq_max
        uint32_t n_rs_seq
        uint32_t n_outputs_max
        uint32_t n_outputs_max_per_seq
        int32_t n_threads
        int32_t n_threads_batch
        llama_context_type ctx_type
        llama_rope_scaling_type rope_scaling_type
        llama_pooling_type_t pooling_type
        llama_attention_type attention_type
        llama_flash_attn_type flash_attn_type
        float rope_freq_base
        float rope_freq_scale
        float yarn_ext_factor
        float yarn_attn_factor
        float yarn_beta_fast
        float yarn_beta_slow
        uint32_t yarn_orig_ctx
        ggml_backend_sched_eval_callback cb_eval
        void * cb_eval_user_data
        ggml_type type_k
        ggml_type type_v
        ggml_abort_callback abort_callback
        void * abort_callback_data
        cpp_bool embeddings
        cpp_bool offload_kqv
        cpp_bool no_perf
        cpp_bool op_offload
        cpp_bool swa_full
        cpp_bool kv_unified
        llama_sampler_seq_config * samplers
        size_t n_samplers
        llama_context * ctx_other

    struct llama_model_tensor_override:
        const char * pattern
        ggml_type type

    ctypedef struct llama_model_quantize_params:
        int32_t nthread
        llama_ftype ftype
        ggml_type output_tensor_type
        ggml_type token_embedding_type
        cpp_bool allow_requantize
        cpp_bool quantize_output_tensor
        cpp_bool only_copy
        cpp_bool pure
        cpp_bool keep_split
        cpp_bool dry_run
        const llama_model_kv_override * kv_overrides
        const llama_model_tensor_override * tt_overrides
        const int32_t * prune_layers
        size_t max_buf_size

    ctypedef struct llama_logit_bias:
        llama_token token
        float bias

    ctypedef struct llama_sampler_chain_params:
        cpp_bool no_perf

    ctypedef struct llama_chat_message:
        const char * role
        const char * content

    const char * c_llama_version "llama_version" ()  # the plain name is a Python function of _llama

    llama_model_params llama_model_default_params()
    llama_context_params llama_context_default_params()
    llama_sampler_chain_params llama_sampler_chain_default_params()
    llama_model_quantize_params llama_model_quantize_default_params()

    void llama_backend_init() except +
    void llama_backend_free()
    void llama_numa_init(ggml_numa_strategy numa) except +

    void llama_attach_threadpool(llama_context * ctx, ggml_threadpool_t threadpool,
                                 ggml_threadpool_t threadpool_batch) except +
    void llama_detach_threadpool(llama_context * ctx) except +

    # loading

    llama_model * llama_model_load_from_file(const char * path_model, llama_model_params params) except +
    llama_model * llama_model_load_from_splits(const char ** paths, size_t n_paths,
                                               llama_model_params params) except +
    void llama_model_save_to_file(const llama_model * model, const char * path_model) except +
    void llama_model_free(llama_model * model)

    llama_context * llama_init_from_model(llama_model * model, llama_context_params params) except +
    void llama_free(llama_context * ctx)

    int64_t llama_time_us()

    size_t llama_max_devices()
    size_t llama_max_parallel_sequences()
    size_t llama_max_tensor_buft_overrides()

    cpp_bool llama_supports_mmap()
    cpp_bool llama_supports_mlock()
    cpp_bool llama_supports_gpu_offload() except +
    cpp_bool llama_supports_rpc() except +

    uint32_t llama_n_ctx(const llama_context * ctx)
    uint32_t llama_n_ctx_seq(const llama_context * ctx)
    uint32_t llama_n_batch(const llama_context * ctx)
    uint32_t llama_n_ubatch(const llama_context * ctx)
    uint32_t llama_n_seq_max(const llama_context * ctx)
    uint32_t llama_n_rs_seq(const llama_context * ctx)

    const llama_model * llama_get_model(const llama_context * ctx)
    llama_memory_t llama_get_memory(const llama_context * ctx)
    llama_pooling_type_t llama_pooling_type(const llama_context * ctx)

    const llama_vocab * llama_model_get_vocab(const llama_model * model)
    llama_rope_type llama_model_rope_type(const llama_model * model)

    int32_t llama_model_n_ctx_train(const llama_model * model)
    int32_t llama_model_n_embd(const llama_model * model)
    int32_t llama_model_n_embd_inp(const llama_model * model)
    int32_t llama_model_n_embd_out(const llama_model * model)
    int32_t llama_model_n_layer(const llama_model * model)
    int32_t llama_model_n_layer_nextn(const llama_model * model)
    int32_t llama_model_n_head(const llama_model * model)
    int32_t llama_model_n_head_kv(const llama_model * model)
    int32_t llama_model_n_swa(const llama_model * model)
    float llama_model_rope_freq_scale_train(const llama_model * model)
    uint32_t llama_model_n_cls_out(const llama_model * model)
    const char * llama_model_cls_label(const llama_model * model, uint32_t i)

    llama_vocab_type_t llama_vocab_type(const llama_vocab * vocab)
    int32_t llama_vocab_n_tokens(const llama_vocab * vocab)

    int32_t llama_model_meta_val_str(const llama_model * model, const char * key, char * buf,
                                     size_t buf_size) except +
    int32_t llama_model_meta_count(const llama_model * model)
    const char * llama_model_meta_key_str(llama_model_meta_key key)
    int32_t llama_model_meta_key_by_index(const llama_model * model, int32_t i, char * buf, size_t buf_size)
    int32_t llama_model_meta_val_str_by_index(const llama_model * model, int32_t i, char * buf,
                                              size_t buf_size)
    int32_t llama_model_desc(const llama_model * model, char * buf, size_t buf_size) except +
    llama_ftype llama_model_ftype(const llama_model * model)
    uint64_t llama_model_size(const llama_model * model)
    const char * llama_model_chat_template(const llama_model * model, const char * name) except +
    uint64_t llama_model_n_params(const llama_model * model)
    cpp_bool llama_model_has_encoder(const llama_model * model)
    cpp_bool llama_model_has_decoder(const llama_model * model)
    llama_token llama_model_decoder_start_token(const llama_model * model)
    cpp_bool llama_model_is_recurrent(const llama_model * model)
    cpp_bool llama_model_is_hybrid(const llama_model * model)
    cpp_bool llama_model_is_diffusion(const llama_model * model)

    uint32_t llama_model_quantize(const char * fname_inp, const char * fname_out,
                                  const llama_model_quantize_params * params) except +

    # adapters

    llama_adapter_lora * llama_adapter_lora_init(llama_model * model, const char * path_lora) except +
    void llama_adapter_lora_free(llama_adapter_lora * adapter)
    int32_t llama_set_adapters_lora(llama_context * ctx, llama_adapter_lora ** adapters, size_t n_adapters,
                                    float * scales) except +
    int32_t llama_set_adapter_cvec(llama_context * ctx, const float * data, size_t len, int32_t n_embd,
                                   int32_t il_start, int32_t il_end) except +

    # memory

    void llama_memory_clear(llama_memory_t mem, cpp_bool data) except +
    cpp_bool llama_memory_seq_rm(llama_memory_t mem, llama_seq_id seq_id, llama_pos p0, llama_pos p1) except +
    void llama_memory_seq_cp(llama_memory_t mem, llama_seq_id seq_id_src, llama_seq_id seq_id_dst,
                             llama_pos p0, llama_pos p1) except +
    void llama_memory_seq_keep(llama_memory_t mem, llama_seq_id seq_id) except +
    void llama_memory_seq_add(llama_memory_t mem, llama_seq_id seq_id, llama_pos p0, llama_pos p1,
                              llama_pos delta) except +
    void llama_memory_seq_div(llama_memory_t mem, llama_seq_id seq_id, llama_pos p0, llama_pos p1,
                              int d) except +
    llama_pos llama_memory_seq_pos_min(llama_memory_t mem, llama_seq_id seq_id)
    llama_pos llama_memory_seq_pos_max(llama_memory_t mem, llama_seq_id seq_id)
    cpp_bool llama_memory_can_shift(llama_memory_t mem)

    # state

    size_t llama_state_get_size(llama_context * ctx) except +
    size_t llama_state_get_data(llama_context * ctx, uint8_t * dst, size_t size) except +
    size_t llama_state_set_data(llama_context * ctx, const uint8_t * src, size_t size) except +
    cpp_bool llama_state_load_file(llama_context * ctx, const char * path_session, llama_token * tokens_out,
                               size_t n_token_capacity, size_t * n_token_count_out) except +
    cpp_bool llama_state_save_file(llama_context * ctx, const char * path_session, const llama_token * tokens,
                               size_t n_token_count) except +
    size_t llama_state_seq_save_file(llama_context * ctx, const char * filepath, llama_seq_id seq_id,
                                     const llama_token * tokens, size_t n_token_count) except +
    size_t llama_state_seq_load_file(llama_context * ctx, const char * filepath, llama_seq_id dest_seq_id,
                                     llama_token * tokens_out, size_t n_token_capacity,
                                     size_t * n_token_count_out) except +

    const uint32_t LLAMA_STATE_SEQ_FLAGS_NONE
    const uint32_t LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
    const uint32_t LLAMA_STATE_SEQ_FLAGS_ON_DEVICE
    ctypedef uint32_t llama_state_seq_flags

    size_t llama_state_seq_get_size_ext(llama_context * ctx, llama_seq_id seq_id,
                                        llama_state_seq_flags flags) except +
    size_t llama_state_seq_get_data_ext(llama_context * ctx, uint8_t * dst, size_t size, llama_seq_id seq_id,
                                        llama_state_seq_flags flags) except +
    size_t llama_state_seq_set_data_ext(llama_context * ctx, const uint8_t * src, size_t size,
                                        llama_seq_id dest_seq_id, llama_state_seq_flags flags) except +

    # decoding

    llama_batch llama_batch_get_one(llama_token * tokens, int32_t n_tokens)
    llama_batch llama_batch_init(int32_t n_tokens, int32_t embd, int32_t n_seq_max)
    void llama_batch_free(llama_batch batch)
    int32_t llama_encode(llama_context * ctx, llama_batch batch) except +
    int32_t llama_decode(llama_context * ctx, llama_batch batch) except +

    struct llama_embd:
        const float * data
        size_t n_rows
        size_t n_embd

    llama_batch_ext * llama_batch_ext_init(llama_context * ctx) except +
    void llama_batch_ext_free(llama_batch_ext * batch)
    void llama_batch_ext_clear(llama_batch_ext * batch)
    int32_t llama_batch_ext_add(llama_batch_ext * batch, llama_seq_id seq_id) except +
    int32_t llama_batch_ext_add_token(llama_batch_ext * batch, llama_seq_id seq_id, llama_token id) except +
    int32_t llama_batch_ext_add_embd(llama_batch_ext * batch, llama_seq_id seq_id, llama_embd embd) except +
    cpp_bool llama_batch_ext_add_seq(llama_batch_ext * batch, int32_t idx, llama_seq_id seq_id) except +
    cpp_bool llama_batch_ext_set_embd_token(llama_batch_ext * batch, int32_t idx, llama_embd embd) except +
    cpp_bool llama_batch_ext_set_output_logits(llama_batch_ext * batch, int32_t idx, cpp_bool value)
    cpp_bool llama_batch_ext_set_pos(llama_batch_ext * batch, int32_t idx, const llama_pos * pos) except +
    int32_t llama_process(llama_context * ctx, llama_process_type type, llama_batch_ext * batch) except +

    void llama_set_n_threads(llama_context * ctx, int32_t n_threads, int32_t n_threads_batch)
    int32_t llama_n_threads(llama_context * ctx)
    int32_t llama_n_threads_batch(llama_context * ctx)
    void llama_set_embeddings(llama_context * ctx, cpp_bool embeddings) except +
    void llama_set_causal_attn(llama_context * ctx, cpp_bool causal_attn) except +
    cpp_bool llama_get_causal_attn(const llama_context * ctx)
    void llama_set_abort_callback(llama_context * ctx, ggml_abort_callback abort_callback,
                                  void * abort_callback_data) except +
    void llama_synchronize(llama_context * ctx) except +

    # results

    float * llama_get_logits(llama_context * ctx) except +
    float * llama_get_logits_ith(llama_context * ctx, int32_t i) except +
    float * llama_get_embeddings(llama_context * ctx) except +
    float * llama_get_embeddings_ith(llama_context * ctx, int32_t i) except +
    float * llama_get_embeddings_seq(llama_context * ctx, llama_seq_id seq_id) except +

    llama_token llama_get_sampled_token_ith(llama_context * ctx, int32_t i) except +
    float * llama_get_sampled_probs_ith(llama_context * ctx, int32_t i) except +
    uint32_t llama_get_sampled_probs_count_ith(llama_context * ctx, int32_t i) except +
    float * llama_get_sampled_logits_ith(llama_context * ctx, int32_t i) except +
    uint32_t llama_get_sampled_logits_count_ith(llama_context * ctx, int32_t i) except +
    llama_token * llama_get_sampled_candidates_ith(llama_context * ctx, int32_t i) except +
    uint32_t llama_get_sampled_candidates_count_ith(llama_context * ctx, int32_t i) except +

    # vocabulary

    const char * llama_vocab_get_text(const llama_vocab * vocab, llama_token token) except +
    float llama_vocab_get_score(const llama_vocab * vocab, llama_token token) except +
    llama_token_attr llama_vocab_get_attr(const llama_vocab * vocab, llama_token token) except +
    cpp_bool llama_vocab_is_eog(const llama_vocab * vocab, llama_token token)
    cpp_bool llama_vocab_is_control(const llama_vocab * vocab, llama_token token) except +

    llama_token llama_vocab_bos(const llama_vocab * vocab)
    llama_token llama_vocab_eos(const llama_vocab * vocab)
    llama_token llama_vocab_eot(const llama_vocab * vocab)
    llama_token llama_vocab_sep(const llama_vocab * vocab)
    llama_token llama_vocab_nl(const llama_vocab * vocab)
    llama_token llama_vocab_pad(const llama_vocab * vocab)
    llama_token llama_vocab_mask(const llama_vocab * vocab)
    cpp_bool llama_vocab_get_add_bos(const llama_vocab * vocab)
    cpp_bool llama_vocab_get_add_eos(const llama_vocab * vocab)
    cpp_bool llama_vocab_get_add_sep(const llama_vocab * vocab)
    const llama_token * llama_vocab_get_suppress_tokens(const llama_vocab * vocab,
                                                        int32_t * n_suppress_tokens)
    llama_token llama_vocab_fim_pre(const llama_vocab * vocab)
    llama_token llama_vocab_fim_suf(const llama_vocab * vocab)
    llama_token llama_vocab_fim_mid(const llama_vocab * vocab)
    llama_token llama_vocab_fim_pad(const llama_vocab * vocab)
    llama_token llama_vocab_fim_rep(const llama_vocab * vocab)
    llama_token llama_vocab_fim_sep(const llama_vocab * vocab)

    int32_t llama_tokenize(const llama_vocab * vocab, const char * text, int32_t text_len,
                           llama_token * tokens, int32_t n_tokens_max, cpp_bool add_special,
                           cpp_bool parse_special) except +
    int32_t llama_token_to_piece(const llama_vocab * vocab, llama_token token, char * buf, int32_t length,
                                 int32_t lstrip, cpp_bool special) except +
    int32_t llama_detokenize(const llama_vocab * vocab, const llama_token * tokens, int32_t n_tokens,
                             char * text, int32_t text_len_max, cpp_bool remove_special,
                             cpp_bool unparse_special) except +

    int32_t llama_chat_apply_template(const char * tmpl, const llama_chat_message * chat, size_t n_msg,
                                      cpp_bool add_ass, char * buf, int32_t length) except +
    int32_t llama_chat_builtin_templates(const char ** output, size_t len) except +

    # sampling

    ctypedef void * llama_sampler_context_t

    struct llama_sampler_i:
        cpp_bool (*backend_init)(llama_sampler * smpl, ggml_backend_buffer_type_t buft,
                             uint32_t n_outputs_max_per_seq)

    struct llama_sampler:
        llama_sampler_i * iface
        llama_sampler_context_t ctx

    cpp_bool llama_set_sampler(llama_context * ctx, llama_seq_id seq_id, llama_sampler * smpl) except +

    const char * llama_sampler_name(const llama_sampler * smpl)
    void llama_sampler_accept(llama_sampler * smpl, llama_token token) except +
    void llama_sampler_apply(llama_sampler * smpl, llama_token_data_array * cur_p) except +
    void llama_sampler_reset(llama_sampler * smpl) except +
    llama_sampler * llama_sampler_clone(const llama_sampler * smpl) except +
    void llama_sampler_copy(const llama_sampler * src, llama_sampler * dst) except +
    void llama_sampler_free(llama_sampler * smpl)

    llama_sampler * llama_sampler_chain_init(llama_sampler_chain_params params) except +
    void llama_sampler_chain_add(llama_sampler * chain, llama_sampler * smpl) except +
    llama_sampler * llama_sampler_chain_get(llama_sampler * chain, int32_t i)
    int32_t llama_sampler_chain_n(const llama_sampler * chain)
    llama_sampler * llama_sampler_chain_remove(llama_sampler * chain, int32_t i) except +

    llama_sampler * llama_sampler_init_greedy() except +
    llama_sampler * llama_sampler_init_dist(uint32_t seed) except +
    llama_sampler * llama_sampler_init_top_k(int32_t k) except +
    llama_sampler * llama_sampler_init_top_p(float p, size_t min_keep) except +
    llama_sampler * llama_sampler_init_min_p(float p, size_t min_keep) except +
    llama_sampler * llama_sampler_init_typical(float p, size_t min_keep) except +
    llama_sampler * llama_sampler_init_temp(float t) except +
    llama_sampler * llama_sampler_init_temp_ext(float t, float delta, float exponent) except +
    llama_sampler * llama_sampler_init_xtc(float p, float t, size_t min_keep, uint32_t seed) except +
    llama_sampler * llama_sampler_init_top_n_sigma(float n) except +
    llama_sampler * llama_sampler_init_mirostat(int32_t n_vocab, uint32_t seed, float tau, float eta,
                                                int32_t m) except +
    llama_sampler * llama_sampler_init_mirostat_v2(uint32_t seed, float tau, float eta) except +
    llama_sampler * llama_sampler_init_grammar(const llama_vocab * vocab, const char * grammar_str,
                                               const char * grammar_root) except +
    llama_sampler * llama_sampler_init_grammar_lazy_patterns(
        const llama_vocab * vocab, const char * grammar_str, const char * grammar_root,
        const char ** trigger_patterns, size_t num_trigger_patterns,
        const llama_token * trigger_tokens, size_t num_trigger_tokens) except +
    llama_sampler * llama_sampler_init_penalties(int32_t n_vocab, int32_t penalty_last_n,
                                                 float penalty_repeat, float penalty_freq,
                                                 float penalty_present) except +
    llama_sampler * llama_sampler_init_dry(const llama_vocab * vocab, float dry_multiplier, float dry_base,
                                           int32_t dry_allowed_length, int32_t dry_penalty_last_n,
                                           const char ** seq_breakers, size_t num_breakers) except +
    llama_sampler * llama_sampler_init_adaptive_p(float target, float decay, uint32_t seed) except +
    llama_sampler * llama_sampler_init_logit_bias(int32_t n_vocab, int32_t n_logit_bias,
                                                  const llama_logit_bias * logit_bias) except +
    llama_sampler * llama_sampler_init_infill(const llama_vocab * vocab) except +

    uint32_t llama_sampler_get_seed(const llama_sampler * smpl)
    llama_token llama_sampler_sample(llama_sampler * smpl, llama_context * ctx, int32_t idx) except +

    # splits, logging, counters

    int32_t llama_split_path(char * split_path, size_t maxlen, const char * path_prefix, int32_t split_no,
                             int32_t split_count)
    int32_t llama_split_prefix(char * split_prefix, size_t maxlen, const char * split_path, int32_t split_no,
                               int32_t split_count)

    const char * llama_print_system_info() except +
    void llama_log_get(ggml_log_callback * log_callback, void ** user_data)
    void llama_log_set(ggml_log_callback log_callback, void * user_data)

    struct llama_perf_context_data:
        double t_start_ms
        double t_load_ms
        double t_p_eval_ms
        double t_eval_ms
        int32_t n_p_eval
        int32_t n_eval
        int32_t n_reused

    struct llama_perf_sampler_data:
        double t_sample_ms
        int32_t n_sample

    llama_perf_context_data llama_perf_context(const llama_context * ctx)
    void llama_perf_context_reset(llama_context * ctx)
    llama_perf_sampler_data llama_perf_sampler(const llama_sampler * chain)
    void llama_perf_sampler_reset(llama_sampler * chain)


# --- llama-ext.h: exported with C++ linkage, the header upstream keeps for what is not stable yet --------

cdef extern from "llama-ext.h" nogil:
    ggml_cgraph * llama_graph_reserve(llama_context * ctx, uint32_t n_tokens, uint32_t n_seqs,
                                      uint32_t n_outputs) except +
    ggml_type llama_ftype_get_default_type(llama_ftype ftype)

    struct llama_memory_breakdown_data:
        size_t model
        size_t context
        size_t compute
    ctypedef cpp_map[ggml_backend_buffer_type_t, llama_memory_breakdown_data] llama_memory_breakdown

    int32_t llama_model_n_expert(const llama_model * model)
    int32_t llama_model_n_devices(const llama_model * model)
    ggml_backend_dev_t llama_model_get_device(const llama_model * model, int i)
    llama_memory_breakdown llama_get_memory_breakdown(const llama_context * ctx) except +

    void llama_set_embeddings_nextn(llama_context * ctx, cpp_bool value, cpp_bool masked) except +
    void llama_set_nextn_layer_offset(llama_context * ctx, int32_t offset) except +
    float * llama_get_embeddings_nextn(llama_context * ctx) except +
    float * llama_get_embeddings_nextn_ith(llama_context * ctx, int32_t i) except +
    void llama_set_embeddings_layer_inp(llama_context * ctx, uint32_t lid, cpp_bool value) except +
    float * llama_get_embeddings_layer_inp(llama_context * ctx, uint32_t lid) except +
    llama_context * llama_get_ctx_other(llama_context * ctx)

    int32_t llama_model_dflash_selector_top_k(const llama_model * model)
    const int32_t * llama_model_target_layer_ids(const llama_model * model)
    uint32_t llama_model_target_layer_ids_n(const llama_model * model)
    uint32_t llama_model_get_tok_embd(const llama_model * model, float * out) except +
