//! Temporary directories of the benchmark, which are removed when their handles are dropped.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use crate::BenchError;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Handle of a new temporary directory. Dropping the handle removes the directory with its content.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates a temporary directory below `parent`, or below the system's temporary directory if `parent` is `None`.
    ///
    /// The choice of `parent` decides which disk is measured: reports print the filesystem of the directory.
    pub fn below(parent: Option<&Path>) -> Result<Self, BenchError> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("thalweg-bench-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(BenchError::files(&path))?;
        Ok(Self { path })
    }

    /// Returns the path of the temporary directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates an empty subdirectory with this name. An existing one with its content is removed first.
    pub fn fresh(&self, name: &str) -> Result<PathBuf, BenchError> {
        let path = self.path.join(name);
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(BenchError::files(path)(error));
            }
            _ => {}
        }
        std::fs::create_dir_all(&path).map_err(BenchError::files(&path))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If the removal fails, nothing is lost: the next run uses another name.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Returns the bytes that the files below `dir` occupy on the disk. These are allocated blocks, so holes in files do
/// not count.
pub fn allocated_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)))
        .map(|(path, meta)| if meta.is_dir() { allocated_bytes(&path) } else { meta.blocks() * 512 })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_directory_goes_away_with_its_handle() {
        let scratch = Scratch::below(None).unwrap();
        let inner = scratch.fresh("a").unwrap();
        std::fs::write(inner.join("file"), [1; 5000]).unwrap();
        assert!(allocated_bytes(scratch.path()) >= 5000);
        assert_eq!(std::fs::read_dir(scratch.fresh("a").unwrap()).unwrap().count(), 0);
        let path = scratch.path().to_path_buf();
        drop(scratch);
        assert!(!path.exists());
    }
}
