//! Machine code compiled once per machine, kept in the user's cache folder.
//!
//! A file is only a shortcut: one that is torn, foreign or stale is compiled anew, and a folder that cannot be
//! written costs the time of a compilation, never an error. Any number of processes may share it.

use super::compile::{self, CompileError, Compiled};
use super::hash::Hash;
use ssmgraph_kernels::cuda::Image;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

/// First bytes of a file; the last is the format's version.
const MAGIC: [u8; 8] = *b"ssmgcub\x01";
/// Magic, key, length and checksum.
const HEADER_BYTES: usize = 32;

/// An image as machine code of one kind of device, such as `sm_90`, from the user's cache or from NVRTC.
///
/// Errors: as [`compile::compile`].
pub fn cached_cubin(
    image: &Image,
    architecture: &str,
    nvrtc_version: (u32, u32),
) -> Result<Vec<u8>, CompileError> {
    Cache::of_user().cubin(image, architecture, nvrtc_version)
}

/// A folder of compiled images, or none.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// The user's: `$SSMGRAPH_CACHE_DIR`, else `ssmgraph` in `$XDG_CACHE_HOME`, else in `~/.cache`. Without any
    /// of these variables nothing is kept.
    pub fn of_user() -> Cache {
        Cache { folder: user_folder(|name| std::env::var_os(name).map(PathBuf::from)) }
    }

    /// A given folder, which is made when needed.
    pub fn at(folder: &Path) -> Cache {
        Cache { folder: Some(folder.to_owned()) }
    }

    /// An image as machine code of one kind of device, such as `sm_90`. The version of NVRTC (of
    /// [`compile::version`]) is part of the file's name, so that a new one compiles anew.
    ///
    /// Errors: as [`compile::compile`]; a target that gives no machine code.
    pub fn cubin(
        &self,
        image: &Image,
        architecture: &str,
        nvrtc_version: (u32, u32),
    ) -> Result<Vec<u8>, CompileError> {
        let key = Hash::new()
            .field(&compile::source_hash(image, architecture).to_le_bytes())
            .field(&nvrtc_version.0.to_le_bytes())
            .field(&nvrtc_version.1.to_le_bytes())
            .value();
        let name = format!("{}-{architecture}-{key:016x}.cubin", image.name);
        self.get(&name, key, || match compile::compile(image, architecture)? {
            Compiled::Cubin(bytes) => Ok(bytes),
            Compiled::Ptx(_) => Err(CompileError::Target { target: architecture.to_owned() }),
        })
    }

    /// The bytes kept under a file name and key, or those that `compile` makes, which are then kept.
    ///
    /// Errors: those of `compile`.
    pub fn get<E>(
        &self,
        name: &str,
        key: u64,
        compile: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<Vec<u8>, E> {
        let path = self.folder.as_ref().map(|folder| folder.join(name));
        let kept = path.as_ref().and_then(|path| fs::read(path).ok());
        if let Some(bytes) = kept.and_then(|file| opened(file, key)) {
            return Ok(bytes);
        }
        let bytes = compile()?;
        if let Some(path) = path {
            // A full or read-only disk is no reason to fail: the bytes are here.
            let _ = keep(&path, &sealed(&bytes, key));
        }
        Ok(bytes)
    }
}

fn user_folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    // A relative folder would scatter caches over the places that programs are started from.
    let folder = |name| variable(name).filter(|path| path.is_absolute());
    folder("SSMGRAPH_CACHE_DIR")
        .or_else(|| folder("XDG_CACHE_HOME").map(|base| base.join("ssmgraph")))
        .or_else(|| folder("HOME").map(|home| home.join(".cache/ssmgraph")))
}

fn checksum(bytes: &[u8]) -> u64 {
    Hash::new().field(bytes).value()
}

fn sealed(bytes: &[u8], key: u64) -> Vec<u8> {
    let numbers = [key, bytes.len() as u64, checksum(bytes)];
    let header = numbers.iter().flat_map(|number| number.to_le_bytes());
    MAGIC.into_iter().chain(header).chain(bytes.iter().copied()).collect()
}

/// What [`sealed`] was given, if nothing has changed since.
fn opened(mut file: Vec<u8>, key: u64) -> Option<Vec<u8>> {
    if file.len() < HEADER_BYTES {
        return None;
    }
    let bytes = file.split_off(HEADER_BYTES);
    (file == sealed(&bytes, key)[..HEADER_BYTES]).then_some(bytes)
}

/// Writes a file under a name of its own and renames it, so that a reader sees all of it or nothing.
fn keep(path: &Path, contents: &[u8]) -> io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let unique = format!("{}-{}.tmp", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let temporary = path.with_extension(unique);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&temporary)
        .and_then(|mut file| file.write_all(contents))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    /// A folder of the test's own, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("ssmgraph-cache-{}-{test}", process::id()));
            let _ = fs::remove_dir_all(&path);
            Folder(path)
        }

        fn files(&self) -> Vec<PathBuf> {
            fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// What the cache answers, and how often it compiled.
    fn get(cache: &Cache, key: u64, bytes: &[u8]) -> (Vec<u8>, usize) {
        let count = AtomicUsize::new(0);
        let answer = cache.get::<Infallible>("op.cubin", key, || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(bytes.to_vec())
        });
        (answer.unwrap(), count.into_inner())
    }

    #[test]
    fn a_kept_image_is_not_compiled_again() {
        let folder = Folder::new("kept");
        let cache = Cache::at(&folder.0.join("made/when/needed"));
        assert_eq!(get(&cache, 7, b"code"), (b"code".to_vec(), 1));
        assert_eq!(get(&cache, 7, b"other"), (b"code".to_vec(), 0));
    }

    #[test]
    fn a_file_of_another_key_is_replaced() {
        let folder = Folder::new("key");
        let cache = Cache::at(&folder.0);
        get(&cache, 7, b"code");
        assert_eq!(get(&cache, 8, b"newer"), (b"newer".to_vec(), 1));
        assert_eq!(get(&cache, 8, b"other"), (b"newer".to_vec(), 0));
    }

    #[test]
    fn a_damaged_file_is_replaced() {
        let folder = Folder::new("damaged");
        let cache = Cache::at(&folder.0);
        get(&cache, 7, b"code");
        let path = folder.files().remove(0);
        let whole = fs::read(&path).unwrap();
        let mut damaged: Vec<Vec<u8>> = (0..whole.len()).map(|bytes| whole[..bytes].to_vec()).collect();
        damaged.extend((0..whole.len()).map(|index| {
            let mut file = whole.clone();
            file[index] ^= 0x10;
            file
        }));
        damaged.push([&whole[..], b"more"].concat());
        damaged.push(b"somebody else's file, longer than the header is".to_vec());
        for file in damaged {
            fs::write(&path, &file).unwrap();
            assert_eq!(get(&cache, 7, b"code"), (b"code".to_vec(), 1), "{file:?}");
            assert_eq!(fs::read(&path).unwrap(), whole);
        }
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_done_without() {
        let folder = Folder::new("unwritable");
        fs::write(&folder.0, b"a file where the folder should be").unwrap();
        for cache in [Cache::at(&folder.0), Cache { folder: None }] {
            assert_eq!(get(&cache, 7, b"code"), (b"code".to_vec(), 1));
            assert_eq!(get(&cache, 7, b"code"), (b"code".to_vec(), 1));
        }
        fs::remove_file(&folder.0).unwrap();
    }

    #[test]
    fn a_failed_compilation_leaves_nothing() {
        let folder = Folder::new("failed");
        let cache = Cache::at(&folder.0);
        assert_eq!(cache.get("op.cubin", 7, || Err("no")), Err("no"));
        assert_eq!(get(&cache, 7, b"code"), (b"code".to_vec(), 1));
    }

    #[test]
    fn many_at_once_read_whole_files_and_leave_one() {
        let folder = Folder::new("many");
        let bytes: Vec<u8> = (0..100_000u32).map(|index| index as u8).collect();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for round in 0..20 {
                        let (answer, _) = get(&Cache::at(&folder.0), round % 3, &bytes);
                        assert_eq!(answer, bytes);
                    }
                });
            }
        });
        assert_eq!(folder.files(), [folder.0.join("op.cubin")]);
    }

    #[test]
    fn the_folder_is_the_users() {
        let folder = |set: &[(&str, &str)]| {
            user_folder(|name| set.iter().find(|(known, _)| *known == name).map(|(_, path)| path.into()))
        };
        let home = ("HOME", "/u");
        assert_eq!(folder(&[]), None);
        assert_eq!(folder(&[home]), Some("/u/.cache/ssmgraph".into()));
        assert_eq!(folder(&[home, ("XDG_CACHE_HOME", "/c")]), Some("/c/ssmgraph".into()));
        assert_eq!(folder(&[home, ("XDG_CACHE_HOME", "relative")]), Some("/u/.cache/ssmgraph".into()));
        let own = ("SSMGRAPH_CACHE_DIR", "/own");
        assert_eq!(folder(&[home, ("XDG_CACHE_HOME", "/c"), own]), Some("/own".into()));
    }
}
