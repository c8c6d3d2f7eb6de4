//! Deleted tables give their blocks back to the disk a piece at a time.
//!
//! Owns: [`TableFile`], an open table, and the thread that shortens what was deleted. Does not own: when a table is
//! deleted, which the LSM crate does when nobody uses it any more.
//!
//! Where the file system tells the disk which blocks are free, a file that goes at once holds the disk up: beside a
//! file of 64 MiB that is deleted, a sync takes 10 to 19 ms; beside one that is shortened by 1 MiB at a time, with
//! rests, 1 to 2 ms. A file lives as long as somebody has it open, so it is kept open for that.
//!
//! Bound: so many tables wait; more are let go at once. What waits when the process ends goes at once, too.

use std::{
    fs::File,
    io,
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

/// By how much a file is shortened at a time.
const PIECE_BYTES: u64 = 1 << 20;
/// The disk is left to others for as long as a piece took, but no longer than this.
const MAX_REST: Duration = Duration::from_millis(5);
/// Tables that may wait.
const MAX_WAITING: usize = 256;

/// Where deleted tables go.
#[derive(Clone, Debug)]
pub(super) struct Discarding(SyncSender<File>);

impl Discarding {
    /// Starts the thread, which ends when nobody has this or a table any more, after what it has to do.
    pub(super) fn start() -> io::Result<Self> {
        let (send, files) = sync_channel(MAX_WAITING);
        thread::Builder::new().name("thalweg-discard".to_owned()).spawn(move || run(&files))?;
        Ok(Self(send))
    }
}

fn run(files: &Receiver<File>) {
    for file in files {
        // What fails here goes at once, when the file is closed.
        let _ = shorten(&file, thread::sleep);
    }
}

fn shorten(file: &File, mut rest: impl FnMut(Duration)) -> io::Result<()> {
    let mut len = file.metadata()?.len();
    while len > PIECE_BYTES {
        len -= PIECE_BYTES;
        let begun = Instant::now();
        file.set_len(len)?;
        rest(begun.elapsed().min(MAX_REST));
    }
    Ok(())
}

/// An open table. When it is dropped after the table was deleted, its blocks are given back in pieces.
#[derive(Debug)]
pub(super) struct TableFile {
    /// `None` while it is dropped.
    file: Option<File>,
    discarding: Discarding,
}

impl TableFile {
    /// Opens it for reading; and, if that is allowed, for being shortened in the end.
    pub(super) fn open(path: &Path, discarding: &Discarding) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path).or_else(|_| File::open(path))?;
        Ok(Self { file: Some(file), discarding: discarding.clone() })
    }

    #[inline]
    pub(super) fn get(&self) -> &File {
        self.file.as_ref().expect("only taken when dropped")
    }
}

impl Drop for TableFile {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        if file.metadata().is_ok_and(|metadata| metadata.nlink() == 0) {
            // With too many waiting, or no thread any more, it goes at once.
            let _ = self.discarding.0.try_send(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(dir: &Path, bytes: u64) -> std::path::PathBuf {
        let path = dir.join("table");
        File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    }

    #[test]
    fn a_file_is_shortened_by_pieces_with_bounded_rests() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::options().write(true).open(table(dir.path(), 3 * PIECE_BYTES + 1)).unwrap();
        let mut lens = Vec::new();
        shorten(&file, |rest| {
            assert!(rest <= MAX_REST);
            lens.push(file.metadata().unwrap().len());
        })
        .unwrap();
        assert_eq!(lens, [2 * PIECE_BYTES + 1, PIECE_BYTES + 1, 1]);
    }

    #[test]
    fn only_deleted_tables_are_handed_over_and_others_stay_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let path = table(dir.path(), 10);
        let (send, files) = sync_channel(1);
        let discarding = Discarding(send);
        drop(TableFile::open(&path, &discarding).unwrap());
        assert!(files.try_recv().is_err());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 10);
        let [one, other] = [(); 2].map(|()| TableFile::open(&path, &discarding).unwrap());
        std::fs::remove_file(&path).unwrap();
        drop(one);
        drop(other);
        assert_eq!(files.recv().unwrap().metadata().unwrap().len(), 10);
        assert!(files.try_recv().is_err(), "there was no room for the other");
    }

    #[test]
    fn the_thread_ends_when_nobody_can_send_it_anything() {
        let dir = tempfile::tempdir().unwrap();
        let path = table(dir.path(), 5 * PIECE_BYTES);
        let (send, files) = sync_channel(1);
        let thread = thread::spawn(move || run(&files));
        let discarding = Discarding(send);
        let (kept, open) = (File::open(&path).unwrap(), TableFile::open(&path, &discarding).unwrap());
        std::fs::remove_file(&path).unwrap();
        drop((open, discarding));
        thread.join().unwrap();
        assert_eq!(kept.metadata().unwrap().len(), PIECE_BYTES);
    }
}
