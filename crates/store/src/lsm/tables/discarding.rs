//! Gradual release of the disk blocks of deleted tables.
//!
//! Owns: [`TableFile`], an open table file, and the thread that truncates deleted files. Does not own: the deletion
//! of a table, which the LSM crate does when no version uses it any more.
//!
//! If the file system reports free blocks to the disk (discard), deleting a large file in one step stalls the disk.
//! While a file of 64 MiB is deleted, a sync of another file takes 10 to 19 ms. If the file is truncated by 1 MiB at a
//! time, with pauses, the other sync takes 1 to 2 ms. The kernel keeps the blocks of a deleted file while the file is
//! open. So this module keeps deleted files open until they are truncated.
//!
//! Bound: at most [`MAX_WAITING`] deleted tables wait to be truncated; the disk blocks of further tables are released
//! immediately. When the process ends, the disk blocks of waiting tables are also released immediately.

use std::{
    fs::File,
    io,
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use thalweg_disk::{PacedJob, PacedWork, Pacer};

/// Number of bytes by which a deleted file is truncated in one step.
const PIECE_BYTES: u64 = 1 << 20;
/// Maximum pause after each truncation of a deleted file, unless the pacer (the scheduler of background disk work)
/// extends it. The pause is as long as the truncation took, so that the disk can serve other requests.
const MAX_REST: Duration = Duration::from_millis(5);
/// Maximum number of deleted tables that wait to be truncated.
const MAX_WAITING: usize = 256;

/// Sender of deleted table files to the thread that truncates them.
#[derive(Clone, Debug)]
pub(super) struct Discarding(SyncSender<File>);

impl Discarding {
    /// Starts the thread that truncates deleted files. The thread ends when all senders and tables are dropped and no
    /// file waits. `pacer` decides the length of the thread's pauses.
    pub(super) fn start(pacer: &Arc<Pacer>) -> io::Result<Self> {
        let (send, files) = sync_channel(MAX_WAITING);
        let pacer = Arc::clone(pacer);
        thread::Builder::new().name("thalweg-discard".to_owned()).spawn(move || run(&files, &pacer))?;
        Ok(Self(send))
    }
}

fn run(files: &Receiver<File>, pacer: &Pacer) {
    for file in files {
        // If truncating fails, the remaining blocks are released when the file is closed.
        let _ = truncate_stepwise(&file, pacer, |pause| pacer.rest(PacedWork::Discard, pause));
    }
}

fn truncate_stepwise(file: &File, pacer: &Pacer, mut rest: impl FnMut(Duration)) -> io::Result<()> {
    let mut len = file.metadata()?.len();
    while len > PIECE_BYTES {
        len -= PIECE_BYTES;
        let piece = pacer.begin(PacedJob { work: PacedWork::Discard, left_bytes: len, deadline: None });
        file.set_len(len)?;
        // The piece counts 0 written bytes, because a truncation says nothing about the disk's write rate.
        rest(piece.finish(0, |took| took.min(MAX_REST)));
    }
    Ok(())
}

/// An open table file. If the table is deleted before this handle is dropped, the disk blocks of the file are released
/// in steps.
#[derive(Debug)]
pub(super) struct TableFile {
    /// The open file; `None` only while the handle is being dropped.
    file: Option<File>,
    discarding: Discarding,
}

impl TableFile {
    /// Opens the file for reading and, if the permissions allow, for truncating it after its deletion.
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
            // If the queue is full, or the thread has ended, the file is released immediately.
            let _ = self.discarding.0.try_send(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_disk::MAX_PAUSE_FACTOR;

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
        truncate_stepwise(&file, &Pacer::default(), |rest| {
            assert!(rest <= MAX_REST * MAX_PAUSE_FACTOR);
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
        let thread = thread::spawn(move || run(&files, &Pacer::default()));
        let discarding = Discarding(send);
        let (kept, open) = (File::open(&path).unwrap(), TableFile::open(&path, &discarding).unwrap());
        std::fs::remove_file(&path).unwrap();
        drop((open, discarding));
        thread.join().unwrap();
        assert_eq!(kept.metadata().unwrap().len(), PIECE_BYTES);
    }
}
