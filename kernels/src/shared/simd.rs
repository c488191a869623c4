//! Which vector instructions the process uses: found once, forced lower by the environment variable
//! `SSMGRAPH_SIMD` = `scalar`, `avx2`, `avx512` (the vectors without the matrix units) or `amx` (everything, as
//! without the variable), for tests and measurements.

use once_cell::sync::Lazy;
use pulp::Arch;

static ARCH: Lazy<Arch> = Lazy::new(|| choose(std::env::var("SSMGRAPH_SIMD").ok().as_deref()));

/// The instruction set that kernels dispatch to.
pub fn arch() -> Arch {
    *ARCH
}

/// Its name, as [`arch`] was chosen.
pub fn arch_name() -> &'static str {
    match arch() {
        #[cfg(target_arch = "x86_64")]
        Arch::V4(_) if has_matrix_units() => "amx",
        #[cfg(target_arch = "x86_64")]
        Arch::V4(_) => "avx512",
        #[cfg(target_arch = "x86_64")]
        Arch::V3(_) => "avx2",
        #[cfg(target_arch = "aarch64")]
        Arch::Neon(_) => "neon",
        _ => "scalar",
    }
}

/// What `SSMGRAPH_SIMD` says, where that is no name of any instruction set; it then has no effect.
pub fn unknown_arch_name() -> Option<String> {
    let name = std::env::var("SSMGRAPH_SIMD").ok()?;
    (!["scalar", "avx2", "avx512", "amx", "neon"].contains(&name.as_str())).then_some(name)
}

/// Whether products of bytes may use the matrix units (AMX) beside AVX-512: the processor has them, the system lets this
/// process use them, and nobody forbade it.
pub fn has_matrix_units() -> bool {
    *MATRIX_UNITS
}

static MATRIX_UNITS: Lazy<bool> = Lazy::new(|| {
    let forced = std::env::var("SSMGRAPH_SIMD").ok();
    let is_lower = matches!(forced.as_deref(), Some("scalar" | "avx2" | "avx512"));
    !is_lower && matrix_units_found()
});

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn matrix_units_found() -> bool {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // Leaf 7: bit 24 tiles, bit 25 products of bytes.
    if !matches!(arch(), Arch::V4(_)) || __cpuid(0).eax < 7 || __cpuid_count(7, 0).edx >> 24 & 3 != 3 {
        return false;
    }
    // The system saves the tiles of a process from when it has asked for them.
    const ARCH_PRCTL: usize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const TILE_DATA: usize = 18;
    let mut answer = ARCH_PRCTL;
    // SAFETY: the call takes two numbers, and changes nothing but what this process may use.
    unsafe {
        asm!(
            "syscall",
            inout("rax") answer,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    answer == 0
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn matrix_units_found() -> bool {
    false
}

/// Runs `body` compiled for the chosen instruction set; what it calls must be inlined to profit.
#[inline(always)]
pub fn vectorize<R>(body: impl FnOnce() -> R) -> R {
    struct Body<F>(F);
    impl<R, F: FnOnce() -> R> pulp::WithSimd for Body<F> {
        type Output = R;
        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, _simd: S) -> R {
            (self.0)()
        }
    }
    arch().dispatch(Body(body))
}

fn choose(forced: Option<&str>) -> Arch {
    match forced {
        Some("scalar") => Arch::Scalar,
        // Every processor with AVX2 has it, but a virtual machine may hide it, and `pulp` does not look.
        #[cfg(target_arch = "x86_64")]
        _ if !is_x86_feature_detected!("f16c") => Arch::Scalar,
        #[cfg(target_arch = "x86_64")]
        Some("avx2") => pulp::x86::V3::try_new().map_or(Arch::Scalar, Arch::V3),
        // `avx512` and `amx` are the best choice where they exist. A name that is unknown here, such as another
        // architecture's, leaves the best choice in place; `arch_name` tells which it is.
        _ => Arch::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalar_can_be_forced() {
        assert!(matches!(choose(Some("scalar")), Arch::Scalar));
    }
}
