//! Backends of ggml, and threads for its CPU backend.

use llama_cpp_sys_2 as sys;
use std::ffi::CString;
use std::ptr::NonNull;

/// A backend of ggml.
pub struct Device {
    pub(crate) backend: NonNull<sys::ggml_backend>,
    threads: Option<ThreadPool>,
}

impl Device {
    /// ggml's own CPU backend, with threads that wait between runs as llama.cpp's do.
    ///
    /// Errors: no memory, threads that the system refused.
    pub fn cpu(threads: usize) -> Result<Device, String> {
        // SAFETY: no arguments.
        let backend = NonNull::new(unsafe { sys::ggml_backend_cpu_init() });
        let backend = backend.ok_or("ggml made no CPU backend")?;
        let pool = ThreadPool::new(threads)?;
        // SAFETY: the backend lives, and keeps the pool no longer than the device does.
        unsafe {
            sys::ggml_backend_cpu_set_n_threads(backend.as_ptr(), threads as i32);
            sys::ggml_backend_cpu_set_threadpool(backend.as_ptr(), pool.pointer.as_ptr());
        }
        Ok(Device { backend, threads: Some(pool) })
    }

    /// The device that ggml knows by this name, such as one of a plugin.
    ///
    /// Errors: no such device, one that makes no backend.
    pub fn named(name: &str) -> Result<Device, String> {
        let text = CString::new(name).map_err(|error| error.to_string())?;
        // SAFETY: the text lives through the call; a device makes backends until the process ends.
        let backend = unsafe {
            let device = sys::ggml_backend_dev_by_name(text.as_ptr());
            if device.is_null() {
                return Err(format!("ggml has no device {name}"));
            }
            sys::ggml_backend_dev_init(device, std::ptr::null())
        };
        let backend = NonNull::new(backend).ok_or_else(|| format!("{name} made no backend"))?;
        Ok(Device { backend, threads: None })
    }

    /// The threads of a CPU backend.
    pub fn threads(&self) -> Option<&ThreadPool> {
        self.threads.as_ref()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: made above, freed once; the pool is freed after it.
        unsafe { sys::ggml_backend_free(self.backend.as_ptr()) }
    }
}

/// Threads of ggml's CPU backend.
pub struct ThreadPool {
    pub(crate) pointer: NonNull<sys::ggml_threadpool>,
}

impl ThreadPool {
    /// As many threads, the caller among them.
    ///
    /// Errors: the system refused them.
    pub fn new(threads: usize) -> Result<ThreadPool, String> {
        // SAFETY: the parameters are ggml's own defaults and live through the call.
        let pointer = unsafe {
            let mut params = sys::ggml_threadpool_params_default(threads as i32);
            sys::ggml_threadpool_new(&mut params)
        };
        NonNull::new(pointer).map(|pointer| ThreadPool { pointer }).ok_or("ggml made no threads".into())
    }

    /// Puts the threads to sleep, which otherwise watch for work for a while and take a core from others.
    pub fn rest(&self) {
        // SAFETY: the pool lives, and no graph runs on it.
        unsafe { sys::ggml_threadpool_pause(self.pointer.as_ptr()) }
    }

    /// Wakes them.
    pub fn wake(&self) {
        // SAFETY: the pool lives.
        unsafe { sys::ggml_threadpool_resume(self.pointer.as_ptr()) }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        // SAFETY: made once, freed once; what used it is gone.
        unsafe { sys::ggml_threadpool_free(self.pointer.as_ptr()) }
    }
}

/// The instructions that ggml's CPU backend was built for, by name; without AVX-512 on a machine that has it, it is no
/// peer.
pub fn vectors() -> Vec<&'static str> {
    // SAFETY: the functions take nothing and answer 0 or 1.
    let has = unsafe {
        [
            ("avx2", sys::ggml_cpu_has_avx2()),
            ("avx512", sys::ggml_cpu_has_avx512()),
            ("avx512_vnni", sys::ggml_cpu_has_avx512_vnni()),
            ("amx_int8", sys::ggml_cpu_has_amx_int8()),
            ("neon", sys::ggml_cpu_has_neon()),
            ("llamafile", sys::ggml_cpu_has_llamafile()),
        ]
    };
    has.into_iter().filter(|(_, has)| *has != 0).map(|(name, _)| name).collect()
}
