//! A file as a slice of bytes, without reading it: weights stay in the page cache until they are used.

use memmap2::Mmap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// All maps, to find the one that an address lies in.
static MAPS: Mutex<Vec<Weak<Mmap>>> = Mutex::new(Vec::new());

/// A whole file mapped read-only into memory. An empty file is an empty slice.
///
/// The file must not be truncated or rewritten while it is mapped: the operating system then ends the
/// process on the next access (`SIGBUS`), which no check here can prevent. Replace a file by renaming a
/// new one over it; the mapping keeps the old one alive.
#[derive(Debug)]
pub struct MappedFile {
    // `None` for an empty file, which some systems refuse to map.
    map: Option<Arc<Mmap>>,
}

impl MappedFile {
    /// Maps the file at `path`.
    ///
    /// Errors: whatever the operating system says, and a directory or other thing that has no bytes.
    pub fn open(path: &Path) -> io::Result<MappedFile> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        if metadata.len() == 0 {
            return Ok(MappedFile { map: None });
        }
        // SAFETY: `is_file` and the length were checked above; the map is read-only and `Mmap`
        // unmaps it when dropped, so no reference outlives it. That nobody truncates the file meanwhile is
        // the condition stated on the type.
        let map = Arc::new(unsafe { Mmap::map(&file)? });
        let mut maps = MAPS.lock().unwrap_or_else(PoisonError::into_inner);
        maps.retain(|map| map.strong_count() > 0);
        maps.push(Arc::downgrade(&map));
        Ok(MappedFile { map: Some(map) })
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        self.map.as_ref().map_or(&[], |map| map)
    }
}

/// Tells the system that the process does not need these bytes in memory for now, where they lie in a mapped file; it
/// reads them anew if they are touched again. Does nothing for other bytes.
pub(crate) fn release(address: usize, bytes: usize) {
    #[cfg(unix)]
    {
        let maps: Vec<Arc<Mmap>> =
            MAPS.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect();
        let offset_in = |map: &Mmap| {
            let offset = address.checked_sub(map.as_ptr() as usize)?;
            (offset <= map.len() && bytes <= map.len() - offset).then_some(offset)
        };
        if let Some((map, offset)) = maps.iter().find_map(|map| Some((map, offset_in(map)?))) {
            // SAFETY: the map is one of a file and never written: its pages come back as they were, and so do those of
            // neighbours that lie on the first and the last page. If the system refuses, they stay.
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, bytes) };
        }
    }
    #[cfg(not(unix))]
    let _ = (address, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str, content: &[u8]) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("ssmgraph-mapped-{}-{name}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        path
    }

    #[test]
    fn a_file_reads_back_from_another_thread() {
        let path = scratch("content", b"state");
        let map = MappedFile::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::thread::spawn(move || assert_eq!(map.as_ref(), b"state")).join().unwrap();
    }

    #[test]
    fn an_empty_file_is_an_empty_slice() {
        let path = scratch("empty", b"");
        let map = MappedFile::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(map.as_ref().is_empty());
    }

    #[test]
    fn what_is_no_file_is_an_error() {
        assert!(MappedFile::open(&std::env::temp_dir()).is_err());
        assert!(MappedFile::open(Path::new("no/such/file")).is_err());
    }
}
