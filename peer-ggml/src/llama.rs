//! llama.cpp: models, contexts, and our plugin in them.

use crate::device::ThreadPool;
use llama_cpp_sys_2 as sys;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::ptr::{NonNull, null_mut};

/// Where llama.cpp puts a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// On its own CPU backend, and on helpers of it that are loaded.
    Cpu,
    /// All layers on the device with this name.
    Device(&'static str),
}

/// Keeps llama.cpp's log to itself, but for errors and what the plugin says.
pub fn quiet() {
    unsafe extern "C" fn line(level: sys::ggml_log_level, text: *const c_char, _data: *mut c_void) {
        // SAFETY: ggml passes a text closed by a zero.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        if level >= sys::GGML_LOG_LEVEL_ERROR && level != sys::GGML_LOG_LEVEL_CONT
            || text.starts_with("ssmgraph")
        {
            eprint!("{text}");
        }
    }
    // SAFETY: the function lives as long as the process, and so does llama.cpp's backend.
    unsafe {
        sys::llama_log_set(Some(line), null_mut());
        sys::llama_backend_init();
    }
}

/// Loads a backend plugin, and names the devices that ggml has afterwards.
///
/// Errors: ggml refused it.
pub fn load_plugin(path: &Path) -> Result<Vec<String>, String> {
    let path =
        CString::new(path.to_str().ok_or("a path that is no text")?).map_err(|error| error.to_string())?;
    // SAFETY: the text lives through the call.
    let registry = unsafe { sys::ggml_backend_load(path.as_ptr()) };
    if registry.is_null() {
        return Err(format!("ggml refused {}", path.to_string_lossy()));
    }
    // SAFETY: indices below the count; names are constants of the devices.
    let names = unsafe {
        (0..sys::ggml_backend_dev_count())
            .map(|index| CStr::from_ptr(sys::ggml_backend_dev_name(sys::ggml_backend_dev_get(index))))
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    };
    Ok(names)
}

/// A model in llama.cpp.
pub struct Model {
    pointer: NonNull<sys::llama_model>,
    vocabulary: usize,
}

impl Model {
    /// Reads a file.
    ///
    /// Errors: no such device, llama.cpp refused the file.
    pub fn load(path: &Path, placement: Placement) -> Result<Model, String> {
        let file = CString::new(path.to_str().ok_or("a path that is no text")?)
            .map_err(|error| error.to_string())?;
        // SAFETY: no arguments.
        let mut params = unsafe { sys::llama_model_default_params() };
        let mut devices = [null_mut(), null_mut()];
        params.n_gpu_layers = 0;
        if let Placement::Device(name) = placement {
            let text = CString::new(name).map_err(|error| error.to_string())?;
            // SAFETY: the text lives through the call.
            devices[0] = unsafe { sys::ggml_backend_dev_by_name(text.as_ptr()) };
            if devices[0].is_null() {
                return Err(format!("ggml has no device {name}"));
            }
            params.n_gpu_layers = -1;
        }
        params.devices = devices.as_mut_ptr();
        // SAFETY: text and list live through the call.
        let pointer = NonNull::new(unsafe { sys::llama_model_load_from_file(file.as_ptr(), params) });
        let pointer = pointer.ok_or_else(|| format!("llama.cpp refused {}", path.display()))?;
        // SAFETY: the model lives.
        let vocabulary = unsafe { sys::llama_vocab_n_tokens(sys::llama_model_get_vocab(pointer.as_ptr())) };
        Ok(Model { pointer, vocabulary: vocabulary as usize })
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: loaded once, freed once; contexts borrow it.
        unsafe { sys::llama_model_free(self.pointer.as_ptr()) }
    }
}

/// A context of one sequence.
pub struct Context<'m> {
    pointer: NonNull<sys::llama_context>,
    model: &'m Model,
    threads: ThreadPool,
}

impl<'m> Context<'m> {
    /// A context with F32 caches and no flash attention.
    ///
    /// Errors: llama.cpp refused it.
    pub fn new(model: &'m Model, threads: usize, length: usize) -> Result<Context<'m>, String> {
        // SAFETY: no arguments.
        let mut params = unsafe { sys::llama_context_default_params() };
        (params.type_k, params.type_v) = (sys::GGML_TYPE_F32, sys::GGML_TYPE_F32);
        params.flash_attn_type = sys::LLAMA_FLASH_ATTN_TYPE_DISABLED;
        Context::of(model, threads, length, params)
    }

    /// A context as llama.cpp's own programs make it.
    ///
    /// Errors: llama.cpp refused it.
    pub fn as_by_default(model: &'m Model, threads: usize, length: usize) -> Result<Context<'m>, String> {
        // SAFETY: no arguments.
        Context::of(model, threads, length, unsafe { sys::llama_context_default_params() })
    }

    /// One batch holds as many tokens as the context.
    fn of(
        model: &'m Model,
        threads: usize,
        length: usize,
        mut params: sys::llama_context_params,
    ) -> Result<Context<'m>, String> {
        (params.n_ctx, params.n_batch, params.n_ubatch) = (length as u32, length as u32, length as u32);
        (params.n_threads, params.n_threads_batch) = (threads as i32, threads as i32);
        let threads = ThreadPool::new(threads)?;
        // SAFETY: the model outlives the context, which borrows it.
        let pointer = unsafe { sys::llama_init_from_model(model.pointer.as_ptr(), params) };
        let pointer = NonNull::new(pointer).ok_or("llama.cpp refused the context")?;
        // SAFETY: context and threads live; the context is freed first.
        unsafe {
            let pool = threads.pointer.as_ptr();
            sys::llama_attach_threadpool(pointer.as_ptr(), pool, pool);
        }
        Ok(Context { pointer, model, threads })
    }

    /// Feeds tokens and gives the logits after the last one.
    ///
    /// Errors: llama.cpp failed.
    pub fn decode(&mut self, tokens: &[u32]) -> Result<Vec<f32>, String> {
        let mut tokens: Vec<i32> = tokens.iter().map(|&token| token as i32).collect();
        // SAFETY: the tokens live through the call, which is the only one on this context.
        let status = unsafe {
            let batch = sys::llama_batch_get_one(tokens.as_mut_ptr(), tokens.len() as i32);
            sys::llama_decode(self.pointer.as_ptr(), batch)
        };
        if status != 0 {
            return Err(format!("llama_decode failed with {status}"));
        }
        // SAFETY: after a decode there is a row of as many logits as the vocabulary has tokens.
        let logits = unsafe {
            let row = sys::llama_get_logits_ith(self.pointer.as_ptr(), -1);
            if row.is_null() {
                return Err("llama.cpp has no logits".into());
            }
            std::slice::from_raw_parts(row, self.model.vocabulary)
        };
        Ok(logits.to_vec())
    }

    /// The threads that compute.
    pub fn threads(&self) -> &ThreadPool {
        &self.threads
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        // SAFETY: the context lives.
        unsafe { sys::llama_memory_clear(sys::llama_get_memory(self.pointer.as_ptr()), true) }
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        // SAFETY: made once, freed once.
        unsafe { sys::llama_free(self.pointer.as_ptr()) }
    }
}

/// What a model says to a prompt.
pub struct Answer {
    /// After the prompt, then after each token of the continuation.
    pub logits: Vec<Vec<f32>>,
    /// The greedy continuation.
    pub tokens: Vec<u32>,
}

impl Answer {
    /// The greedy continuation of a prompt.
    ///
    /// Errors: llama.cpp's.
    pub fn of(model: &Model, prompt: &[u32], count: usize) -> Result<Answer, String> {
        let mut context = Context::new(model, 2, (prompt.len() + count).next_multiple_of(256))?;
        let mut answer = Answer { logits: Vec::new(), tokens: Vec::new() };
        let mut logits = context.decode(prompt)?;
        for _ in 0..count {
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap_or(0) as u32;
            answer.logits.push(logits);
            answer.tokens.push(best);
            logits = context.decode(&[best])?;
        }
        answer.logits.push(logits);
        Ok(answer)
    }
}
