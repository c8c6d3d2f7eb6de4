//! Small text files of a data directory that are replaced as a whole: `IDENTITY`, `INSTALLED` and `REPAIR`.
//!
//! Owns: reading and replacing such a file, and the checksum in its last line. Does not own: the lines before it.
//!
//! ```text
//! thalweg state 1
//! directory 3
//! crc 57d206f6       CRC-32C of all bytes before this line, 8 hexadecimal digits
//! ```
//! Invariants: a file whose checksum is wrong is not used, because these files decide which state is removed. A file is
//! replaced by a rename. Early development builds wrote files without the last line. Such a file is read, and the next
//! open adds the line ([`TextFile::add_checksum`]).

use std::io;

use thalweg_disk::{Disk, is_out_of_space};
use thalweg_log::crc32c;

/// First word of the line with the checksum. No other line of these files begins with it.
const CHECKSUM: &str = "crc ";

/// A text file at the root of a data directory.
pub(crate) struct TextFile {
    pub(crate) path: &'static str,
    /// Path under which a new version of the file is written before it is renamed.
    pub(crate) temporary: &'static str,
    /// Maximum number of bytes that are read from the file.
    pub(crate) max_bytes: u64,
}

impl TextFile {
    /// Reads the file and decodes the lines before the checksum; `None` if there is no file. Returns `InvalidData` for
    /// a wrong checksum, and for lines that do not decode.
    pub(crate) fn read<T>(&self, disk: &dyn Disk, decode: impl FnOnce(&str) -> Option<T>) -> io::Result<Option<T>> {
        let Some(text) = self.text(disk)? else { return Ok(None) };
        let (content, checksum) = split(&text);
        if checksum.is_some_and(|line| line != checksum_line(content)) {
            return Err(self.invalid("wrong checksum", &text));
        }
        decode(content).map(Some).ok_or_else(|| self.invalid("unexpected content", &text))
    }

    /// Writes the next version of the file with its checksum, under the temporary name. Syncs its content but not its
    /// name.
    pub(crate) fn prepare(&self, disk: &dyn Disk, content: &str) -> io::Result<()> {
        disk.remove_if_there(self.temporary)?;
        let file = disk.create(self.temporary)?;
        file.write_all_at(with_checksum(content).as_bytes(), 0)?;
        file.sync_all()
    }

    /// Replaces the file. The new version is on disk when the call returns.
    pub(crate) fn replace(&self, disk: &dyn Disk, content: &str) -> io::Result<()> {
        self.prepare(disk, content)?;
        disk.rename(self.temporary, self.path)?;
        disk.sync_dir("")
    }

    /// Removes the file if it exists. Its absence is on disk when the call returns.
    pub(crate) fn remove(&self, disk: &dyn Disk) -> io::Result<()> {
        disk.remove_if_there(self.temporary)?;
        disk.remove_if_there(self.path)?;
        disk.sync_dir("")
    }

    /// Adds the checksum to a file that an early build wrote without one. `encode_again` decodes the file and encodes
    /// it in its present form; it returns `None` for a damaged file, which stays as it is. On a full disk the file
    /// stays as it is too, because a directory on a full disk must open.
    pub(crate) fn add_checksum(
        &self,
        disk: &dyn Disk,
        encode_again: impl FnOnce(&str) -> Option<String>,
    ) -> io::Result<()> {
        let Some(text) = self.text(disk)? else { return Ok(()) };
        let (content, None) = split(&text) else { return Ok(()) };
        let Some(content) = encode_again(content) else { return Ok(()) };
        match self.replace(disk, &content) {
            Err(error) if is_out_of_space(error.kind()) => Ok(()),
            replaced => replaced,
        }
    }

    fn text(&self, disk: &dyn Disk) -> io::Result<Option<String>> {
        let file = match disk.open(self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = vec![0; usize::try_from(file.len()?.min(self.max_bytes)).unwrap_or_default()];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    fn invalid(&self, what: &str, text: &str) -> io::Error {
        let shown: String = text.chars().take(80).collect();
        io::Error::new(io::ErrorKind::InvalidData, format!("{what} of {}: {shown:?}", self.path))
    }
}

/// Returns the bytes of a file that consists of this content and the line with its checksum.
fn with_checksum(content: &str) -> String {
    format!("{content}{}", checksum_line(content))
}

fn checksum_line(content: &str) -> String {
    format!("{CHECKSUM}{:08x}\n", crc32c(content.as_bytes()))
}

/// Splits a file into its content and the line with the checksum; the line is `None` if the file has no such line.
fn split(text: &str) -> (&str, Option<&str>) {
    let unended = text.strip_suffix('\n').unwrap_or(text);
    let (content, last) = text.split_at(unended.rfind('\n').map_or(0, |at| at + 1));
    if last.starts_with(CHECKSUM) { (content, Some(last)) } else { (text, None) }
}

#[cfg(test)]
pub(crate) mod tests {
    use thalweg_disk::SimDisk;

    use super::*;

    const FILE: TextFile = TextFile { path: "FILE", temporary: "FILE.tmp", max_bytes: 4096 };

    /// Returns true if the format document shows a file with this content, byte by byte.
    pub(crate) fn is_documented(content: &str) -> bool {
        let document = include_str!("../../../docs/formats/directory.md");
        document.contains(&format!("```text\n{}```\n", with_checksum(content)))
    }

    /// Flips each bit of a file in turn, and requires that reading it then fails.
    pub(crate) fn each_flipped_bit_is_found(disk: &SimDisk, path: &str, is_refused: &dyn Fn(&SimDisk) -> bool) {
        let len = disk.cached_bytes(path).unwrap().len() as u64;
        assert!(len > 20);
        for place in 0..len * 8 {
            let flipped = disk.kill_process();
            flipped.flip_bit(path, place / 8, (place % 8) as u8).unwrap();
            assert!(is_refused(&flipped), "{path}: bit {place}");
        }
    }

    pub(crate) fn put(disk: &SimDisk, path: &str, text: &str) {
        let _ = disk.remove(path);
        disk.create(path).unwrap().write_all_at(text.as_bytes(), 0).unwrap();
    }

    fn read(disk: &SimDisk) -> io::Result<Option<String>> {
        FILE.read(disk, |text| text.starts_with('a').then(|| text.to_owned()))
    }

    #[test]
    fn a_file_comes_back_and_a_wrong_checksum_is_refused() {
        let disk = SimDisk::new(1);
        assert_eq!(read(&disk).unwrap(), None);
        FILE.replace(&disk, "a\nb\n").unwrap();
        assert_eq!(read(&disk.power_loss(1)).unwrap().as_deref(), Some("a\nb\n"));
        assert_eq!(disk.cached_bytes("FILE").unwrap(), with_checksum("a\nb\n").into_bytes());
        for bad in ["a\nb\ncrc 00000000\n", "a\ncrc \n", "crc 00000000\n", ""] {
            put(&disk, "FILE", bad);
            assert_eq!(read(&disk).unwrap_err().kind(), io::ErrorKind::InvalidData, "{bad:?}");
        }
        // A checksum of other lines, a line without a line feed, and a checksum in capital letters.
        let line = checksum_line("a\nb\n");
        for bad in [format!("a\nc\n{line}"), format!("a\nb\n{}", line.trim_end()), format!("a\nb\n{line}\n")] {
            put(&disk, "FILE", &bad);
            let found = read(&disk).ok().flatten();
            assert!(found.is_none_or(|text| text != "a\nb\n"), "{bad:?}");
        }
        FILE.remove(&disk).unwrap();
        assert_eq!(read(&disk.power_loss(2)).unwrap(), None);
    }

    #[test]
    fn a_file_of_an_early_build_gets_its_checksum_unless_it_is_damaged_or_the_disk_is_full() {
        let disk = SimDisk::new(1);
        let again = |text: &str| text.starts_with('a').then(|| "a\nanew\n".to_owned());
        FILE.add_checksum(&disk, again).unwrap();
        assert_eq!(read(&disk).unwrap(), None, "a missing file stays missing");
        put(&disk, "FILE", "a\n");
        assert_eq!(read(&disk).unwrap().as_deref(), Some("a\n"));
        disk.set_capacity(0);
        FILE.add_checksum(&disk, again).unwrap();
        assert_eq!(disk.cached_bytes("FILE").unwrap(), b"a\n");
        disk.set_capacity(1 << 20);
        (0..2).for_each(|_| FILE.add_checksum(&disk, again).unwrap());
        assert_eq!(disk.power_loss(1).cached_bytes("FILE").unwrap(), with_checksum("a\nanew\n").into_bytes());
        put(&disk, "FILE", "b\n");
        FILE.add_checksum(&disk, again).unwrap();
        assert_eq!(disk.cached_bytes("FILE").unwrap(), b"b\n");
    }
}
