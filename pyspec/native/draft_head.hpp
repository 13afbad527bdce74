// A reduced output head for the contexts of a draft: the rows of the model's head that drafts are made of, in a tensor of
// its own. (A draft has several contexts where it has several NextN layers; it shows the same head to all of them.)
//
// What makes it work without a change to libllama:
//
//   * `llama_model::output` points at the reduced tensor while a graph of a context is built, under the model's lock,
//     and at the whole head at all other times. Nothing else of the model changes; a tied embedding is another member.
//   * Narrower logits are fine as long as nobody asks for raw ones. So every sequence has a sampler, ours, which hands
//     out the ten best rows of the reduced head, or all logits of the whole one.
//   * A graph is used again where its parameters are those of the last one, and the head is none of them. The NextN
//     offset is; graphs that are not of NextN layers do nothing else with it. It says which head a graph was built for.
//     Where it says which layer drafts, reserving a graph makes libllama forget the last one.
//   * The graphs for both heads have the same nodes and leaves in the same order, none of them larger than the whole
//     head's, so that going from one to the other uses the memory as it was planned at first. A head that is the
//     embedding as well would be one leaf less; a second tensor object over the same data takes its place.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>
#include <llama.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "guarded.hpp"
#include "llama-ext.h"
#include "llama-model.h"
#include "select.hpp"

namespace pyspec {

// Rows of a matrix in a file.
class RowFile {
public:
    RowFile(const std::string & path, int64_t offset, size_t row_size) : offset_(offset), row_size_(row_size) {
        file_.reset(std::fopen(path.c_str(), "rb"));
        if (!file_) {
            throw std::runtime_error(path + " can't be opened again: " + std::strerror(errno));
        }
    }

    // False: the file ends before, or can't be read.
    bool read(int32_t row, uint8_t * to) {
#ifdef _WIN32
        const int failed = _fseeki64(file_.get(), offset_ + row * (int64_t) row_size_, SEEK_SET);
#else
        const int failed = fseeko(file_.get(), offset_ + row * (int64_t) row_size_, SEEK_SET);
#endif
        return !failed && std::fread(to, 1, row_size_, file_.get()) == row_size_;
    }

    size_t row_size() const { return row_size_; }

private:
    struct Close {
        void operator()(std::FILE * file) const { std::fclose(file); }
    };
    std::unique_ptr<std::FILE, Close> file_;
    int64_t offset_;
    size_t row_size_;
};

// What the samplers look at while a graph is built.
struct HeadGraph {
    enum Kind : int32_t { whole = 0, reduced = 1, reduced_all = 2 };  // reduced_all: with all of its logits

    Kind kind = whole;
    int64_t n_rows = 0;
    int32_t n_best = 0;  // 0: the device can't choose, all logits come back
};

// The sampler of one sequence. libllama asks it what becomes of a row of logits when it builds a graph.
struct HeadSampler {
    std::shared_ptr<HeadGraph> graph;

    static llama_sampler * make(std::shared_ptr<HeadGraph> graph) {
        static llama_sampler_i iface = {
            /* name              */ [](const llama_sampler *) { return "draft-vocab"; },
            /* accept            */ nullptr,
            /* apply             */ [](llama_sampler *, llama_token_data_array *) {},
            /* reset             */ nullptr,
            /* clone             */ [](const llama_sampler * s) { return make(self(s)->graph); },
            /* free              */ [](llama_sampler * s) { delete self(s); },
            /* backend_init      */ [](llama_sampler *, ggml_backend_buffer_type_t, uint32_t) { return true; },
            /* backend_accept    */ nullptr,
            /* backend_apply     */ apply,
            /* backend_set_input */ nullptr,
            /* backend_reset     */ nullptr,
            /* copy_state        */ nullptr,
        };
        return llama_sampler_init(&iface, new HeadSampler{ std::move(graph) });
    }

private:
    static HeadSampler * self(const llama_sampler * s) { return (HeadSampler *) s->ctx; }

    // libllama hands out rows of a copy of the logits that has one more, for sequences without an output of their own.
    // The copy costs half a millisecond where a vocabulary is large. Where the row is there without it, this takes the
    // row itself, and nothing needs the copy.
    static ggml_tensor * unpadded(ggml_context * ctx, ggml_tensor * row) {
        ggml_tensor * copy = row->view_src;
        if (copy == nullptr || copy->op != GGML_OP_PAD || row->view_offs + ggml_nbytes(row) > ggml_nbytes(copy->src[0])) {
            return row;
        }
        return ggml_view_1d(ctx, copy->src[0], row->ne[0], row->view_offs);
    }

    static void apply(llama_sampler * s, ggml_context * ctx, ggml_cgraph * gf, llama_sampler_data * data) {
        const HeadGraph & graph = *self(s)->graph;
        if (graph.n_best == 0) {
            return;
        }
        const bool choose = graph.kind == HeadGraph::reduced && data->logits->ne[0] == graph.n_rows;
        data->logits = unpadded(ctx, data->logits);
        const int64_t n = choose ? data->logits->ne[0] : graph.n_best;  // otherwise the same nodes, with nothing to do
        ggml_tensor * logits = ggml_view_1d(ctx, data->logits, n, 0);
        ggml_tensor * rows = ggml_top_k(ctx, logits, graph.n_best);
        ggml_tensor * best = ggml_get_rows(ctx, ggml_reshape_2d(ctx, logits, 1, n), rows);
        // With either head, or memory planned for the whole one would let the next sequence's nodes overwrite them.
        ggml_set_output(rows);
        ggml_set_output(best);
        if (choose) {
            data->logits = best;
            data->candidates = rows;
        } else {
            ggml_build_forward_expand(gf, best);
        }
    }
};

class ReducedHead {
public:
    // Best rows that leave the device: as many as confidence is computed from.
    static constexpr int32_t n_best = 10;

    // contexts: of one model. ids: of the rows, each once and fewer than the model has. path, offset: where the head's rows
    // are. nextn: the contexts are of NextN layers.
    // Throws std::runtime_error saying why there can't be a reduced head.
    ReducedHead(std::vector<llama_context *> contexts, HeadLock & lock, const std::vector<int32_t> & ids,
                const std::string & path, int64_t offset, bool nextn)
        : contexts_(std::move(contexts)),
          lock_(lock),
          model_(const_cast<llama_model *>(llama_get_model(contexts_.front()))),
          nextn_(nextn),
          file_(path, offset, ggml_row_size(model_->output->type, model_->output->ne[0])),
          row_(file_.row_size()) {
        allocate((int64_t) ids.size());
        fill(ids);
        graph_ = std::make_shared<HeadGraph>();
        graph_->n_rows = reduced_->ne[1];
        graph_->n_best = device_chooses() ? (int32_t) std::min<size_t>(n_best, ids.size()) : 0;
        const std::unique_lock<std::shared_mutex> alone(lock_.mutex());
        const auto precision = model_->prec_policy.prec_src1.find(model_->output);
        if (precision != model_->prec_policy.prec_src1.end()) {
            const ggml_prec value = precision->second;
            model_->prec_policy.prec_src1[reduced_] = value;
            model_->prec_policy.prec_src1[whole_] = value;
        }
    }

    // The contexts that are still there are detached before.
    ~ReducedHead() {
        {
            const std::unique_lock<std::shared_mutex> alone(lock_.mutex());
            model_->prec_policy.prec_src1.erase(reduced_);
            if (whole_ != model_->output) {
                model_->prec_policy.prec_src1.erase(whole_);
            }
        }
        for (llama_sampler * chain : chains_) {
            llama_sampler_free(chain);
        }
    }

    ReducedHead(const ReducedHead &) = delete;
    ReducedHead & operator=(const ReducedHead &) = delete;

    // Why a context's model can't have a reduced head; empty: it can, as far as can be told from here.
    static std::string refusal(const llama_context * ctx, bool nextn) {
        const llama_model & model = *llama_get_model(ctx);
        const ggml_tensor * head = model.output;
        if (model.arch == LLM_ARCH_DFLASH) {
            return "it drafts a block at once, each token of it over the whole vocabulary";
        }
        if (model.d2t != nullptr) {
            return "it has a reduced vocabulary of its own (d2t)";
        }
        if (model.arch == LLM_ARCH_EAGLE3 && head == nullptr) {
            return "it has no output head of its own, but computes with its target's";
        }
        if (head == nullptr || head->buffer == nullptr || head->ne[1] != llama_vocab_n_tokens(llama_model_get_vocab(&model))) {
            return "its model has no output head over the whole vocabulary";
        }
        if (model.output_b != nullptr) {
            return "its output head has a bias for each token";
        }
        if (model.split_mode() == LLAMA_SPLIT_MODE_TENSOR || model.split_mode() == LLAMA_SPLIT_MODE_ROW) {
            return "its output head is split between devices";
        }
        switch (model.arch) {
            case LLM_ARCH_CHAMELEON: return "its graph changes logits by token id";
            case LLM_ARCH_QWEN3VL:   return "its graph widens the logits again";
            case LLM_ARCH_BITNET:    return "its graph uses the token embeddings as output head";
            default: break;
        }
        if (nextn) {
            for (const llama_layer & layer : model.layers) {
                if (layer.nextn.shared_head_head != nullptr) {
                    return "its NextN layers have output heads of their own (nextn.shared_head_head)";
                }
            }
        }
        return "";
    }

    // The name of the tensor that is the head, in the file.
    static const char * head_name(const llama_context * ctx) { return llama_get_model(ctx)->output->name; }

    // Gives every sequence of every context a sampler. From now on no decode of these has raw logits.
    void attach() {
        for (llama_context * ctx : contexts_) {
            for (uint32_t seq = 0; seq < llama_n_seq_max(ctx); ++seq) {
                llama_sampler * chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
                chains_.push_back(chain);
                llama_sampler_chain_add(chain, HeadSampler::make(graph_));
                if (!llama_set_sampler(ctx, (llama_seq_id) seq, chain)) {
                    for (size_t i = 0; i < contexts_.size(); ++i) {
                        detach(i);
                    }
                    throw std::runtime_error("its context takes no samplers");
                }
            }
        }
    }

    // Takes the samplers from a context. The whole head is shown from now on.
    void detach(size_t i) {
        graph_->kind = HeadGraph::whole;
        llama_context * ctx = contexts_[i];
        if (!nextn_) {
            llama_set_nextn_layer_offset(ctx, HeadGraph::whole);
        }
        for (uint32_t seq = 0; seq < llama_n_seq_max(ctx); ++seq) {
            llama_set_sampler(ctx, (llama_seq_id) seq, nullptr);
        }
    }

    // Which head the next decodes use.
    void show(HeadGraph::Kind kind) noexcept {
        if (kind == graph_->kind) {
            return;
        }
        graph_->kind = kind;
        for (llama_context * ctx : contexts_) {
            if (nextn_) {
                forget_graph(ctx);
            } else {
                llama_set_nextn_layer_offset(ctx, kind);
            }
        }
    }

    bool is_reduced() const { return graph_->kind != HeadGraph::whole; }

    // A decode of the i-th context.
    int32_t decode(size_t i, llama_batch_ext * batch) noexcept {
        last_ = contexts_[i];
        if (!is_reduced() && whole_ == model_->output) {
            return decode_and_wait(lock_, last_, batch);
        }
        const std::unique_lock<std::shared_mutex> alone(lock_.mutex());
        const Exchange exchange(*model_, is_reduced() ? reduced_ : whole_);
        return decode_and_wait_locked(last_, batch);
    }

    // All logits of an output of the last decode, or those of the best rows: how many, and where.
    int32_t logits(int32_t output, const float ** values) const {
        *values = llama_get_sampled_logits_ith(last_, output);
        return *values == nullptr ? 0 : (int32_t) llama_get_sampled_logits_count_ith(last_, output);
    }

    // The best rows of an output of the last decode, by row number, best first; empty where there are none.
    void best(int32_t output, std::vector<Scored> & rows) const {
        rows.clear();
        const float * logits = nullptr;
        const int32_t n = this->logits(output, &logits);
        if (n == reduced_->ne[1]) {
            top_k(logits, n, n_best, rows);
            return;
        }
        const llama_token * numbers = llama_get_sampled_candidates_ith(last_, output);
        if (numbers == nullptr || (int32_t) llama_get_sampled_candidates_count_ith(last_, output) != n) {
            return;
        }
        for (int32_t i = 0; i < n; ++i) {
            rows.push_back({ numbers[i], logits[i] });
        }
        std::sort(rows.begin(), rows.end(), ranks_before);
    }

    // Whether single rows can be written.
    bool can_write() const {
        ggml_backend_buffer_type_t buft = ggml_backend_buffer_get_type(buffer_.get());
        ggml_backend_dev_t device = ggml_backend_buft_get_device(buft);
        return ggml_backend_buft_is_host(buft) ||
               (device != nullptr && ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU);
    }

    // Makes a row stand for another token. False: its weights can't be read from the file.
    bool write(int32_t row, int32_t id) {
        if (!file_.read(id, row_.data())) {
            return false;
        }
        ggml_backend_tensor_set(reduced_, row_.data(), row * row_.size(), row_.size());
        return true;
    }

    int64_t n_rows() const { return reduced_->ne[1]; }
    size_t bytes() const { return ggml_backend_buffer_get_size(buffer_.get()); }
    size_t row_size() const { return row_.size(); }

private:
    // The model's head is another one for as long as this lives.
    class Exchange {
    public:
        Exchange(llama_model & model, ggml_tensor * head) : model_(model), whole_(model.output) { model.output = head; }
        ~Exchange() { model_.output = whole_; }
        Exchange(const Exchange &) = delete;
        Exchange & operator=(const Exchange &) = delete;

    private:
        llama_model & model_;
        ggml_tensor * whole_;
    };

    struct FreeContext {
        void operator()(ggml_context * ctx) const { ggml_free(ctx); }
    };
    struct FreeBuffer {
        void operator()(ggml_backend_buffer * buffer) const { ggml_backend_buffer_free(buffer); }
    };

    std::vector<llama_context *> contexts_;
    llama_context * last_ = nullptr;  // that decoded
    HeadLock & lock_;
    llama_model * model_;
    bool nextn_;
    RowFile file_;
    std::vector<uint8_t> row_;
    std::unique_ptr<ggml_context, FreeContext> tensors_;
    std::unique_ptr<ggml_backend_buffer, FreeBuffer> buffer_;
    ggml_tensor * reduced_ = nullptr;
    ggml_tensor * whole_ = nullptr;  // the model's, or a second object for it
    std::shared_ptr<HeadGraph> graph_;
    std::vector<llama_sampler *> chains_;  // one for each sequence of each context

    // Reserves what libllama itself reserves last, the largest graph with the whole head, so that memory is planned as
    // before; with that the graph of the last decode is gone.
    void forget_graph(llama_context * ctx) noexcept {
        const uint32_t n_seqs = llama_n_seq_max(ctx);
        const uint32_t n_tokens = std::min(llama_n_ctx(ctx), llama_n_ubatch(ctx));
        const std::unique_lock<std::shared_mutex> alone(lock_.mutex());
        const Exchange exchange(*model_, whole_);
        try {
            llama_graph_reserve(ctx, n_tokens, n_seqs, n_seqs);
        } catch (...) {  // the graph is gone all the same
        }
    }

    // A tensor of the head's type in a buffer of the head's kind. Its name is none an adapter knows.
    void allocate(int64_t n_rows) {
        const ggml_tensor * whole = model_->output;
        tensors_.reset(ggml_init({ 2 * ggml_tensor_overhead(), nullptr, true }));
        reduced_ = ggml_new_tensor_2d(tensors_.get(), whole->type, whole->ne[0], n_rows);
        ggml_set_name(reduced_, "output_draft.weight");
        buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(tensors_.get(), ggml_backend_buffer_get_type(whole->buffer)));
        if (!buffer_) {
            throw std::runtime_error("there is no memory for it");
        }
        if ((whole->extra == nullptr) != (reduced_->extra == nullptr)) {
            throw std::runtime_error("so many rows can't be laid out like its output head");
        }
        ggml_backend_buffer_set_usage(buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        whole_ = model_->output;
        if (whole_ == model_->tok_embd) {
            whole_ = ggml_dup_tensor(tensors_.get(), whole);
            *whole_ = *whole;
        }
    }

    void fill(const std::vector<int32_t> & ids) {
        std::vector<uint8_t> rows(ids.size() * row_.size());
        for (size_t i = 0; i < ids.size(); ++i) {
            if (!file_.read(ids[i], rows.data() + i * row_.size())) {
                throw std::runtime_error("the rows of its output head can't be read from the file");
            }
        }
        ggml_backend_tensor_set(reduced_, rows.data(), 0, rows.size());
    }

    // Whether the device that computes the logits can find the best of them.
    bool device_chooses() const {
        ggml_backend_dev_t device = model_->dev_output();
        if (device == nullptr || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) {
            return true;
        }
        const std::unique_ptr<ggml_context, FreeContext> ctx(ggml_init({ 8 * ggml_tensor_overhead(), nullptr, true }));
        ggml_tensor * logits = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, reduced_->ne[1]);
        ggml_tensor * rows = ggml_top_k(ctx.get(), logits, (int) std::min<int64_t>(n_best, reduced_->ne[1]));
        ggml_tensor * best = ggml_get_rows(ctx.get(), ggml_reshape_2d(ctx.get(), logits, 1, reduced_->ne[1]), rows);
        return ggml_backend_dev_supports_op(device, rows) && ggml_backend_dev_supports_op(device, best);
    }
};

}  // namespace pyspec
