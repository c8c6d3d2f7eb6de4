//! Small text files of a data directory that are replaced as a whole.

use std::io;

use thalweg_disk::Disk;

/// Reads a file and decodes it; `None` if there is none. Bytes above `max_bytes` are not read. Returns `InvalidData`
/// for a content that does not decode.
pub(crate) fn read<T>(
    disk: &dyn Disk,
    path: &str,
    max_bytes: u64,
    decode: impl FnOnce(&str) -> Option<T>,
) -> io::Result<Option<T>> {
    let file = match disk.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![0; usize::try_from(file.len()?.min(max_bytes)).unwrap_or_default()];
    file.read_exact_at(&mut bytes, 0)?;
    let text = String::from_utf8_lossy(&bytes);
    let shown: String = text.chars().take(80).collect();
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, format!("unexpected content of {path}: {shown:?}"));
    decode(&text).ok_or_else(invalid).map(Some)
}

/// Writes a file, in place of one with that name, and syncs its content but not its name.
pub(crate) fn write(disk: &dyn Disk, path: &str, text: &str) -> io::Result<()> {
    remove(disk, path)?;
    let file = disk.create(path)?;
    file.write_all_at(text.as_bytes(), 0)?;
    file.sync_all()
}

/// Removes a file if it exists.
pub(crate) fn remove(disk: &dyn Disk, path: &str) -> io::Result<()> {
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
