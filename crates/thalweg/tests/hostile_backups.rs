//! Backups that were made to exhaust the memory of the machine that reads them.
//!
//! A program of its own: the system counts the memory of a process from before it started its program, so the test
//! itself must never need much.

#![allow(unreachable_pub, reason = "a test program has no interface")]

mod node;

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::Stdio,
};

use node::command;

const MIB: usize = 1 << 20;
/// Maximum memory that a command which reads a file of a few KiB needs beyond that of an empty backup.
const MOST_KIB: i64 = 64 * 1024;
/// Maximum memory that the restore of rows of 7 MiB each needs beyond that of an empty backup. A node could have such
/// rows. A restore holds a few of them at a time: one that is read, one in a batch, and those in memtables and in
/// tables that are written and compacted.
const MOST_KIB_OF_LARGE_ROWS: i64 = 128 * 1024;

const BEGIN: u8 = 1;
const ROWS: u8 = 2;
const ENTRIES: u8 = 3;
const END: u8 = 4;
const FULL: u8 = 1;
const INCREMENT: u8 = 2;

/// Builder of a snapshot whose checksums are right; see `docs/formats/snapshot.md`.
struct Forgery {
    bytes: Vec<u8>,
    number: u64,
    chain: u32,
}

impl Forgery {
    fn new(part: u8, since: u64, lsn: u64) -> Self {
        let mut begin = vec![part];
        for number in [7, since, lsn, 1, 1, 1, 1, 0, 0, 0, 0_u64] {
            begin.extend_from_slice(&number.to_le_bytes());
        }
        Self::empty().with(BEGIN, &[(&begin, 0)])
    }

    fn empty() -> Self {
        Self { bytes: Vec::new(), number: 0, chain: 0 }
    }

    /// Adds a compressed chunk, whose contents are some bytes and a number of zeroes after them, any number of times.
    fn with(mut self, kind: u8, parts: &[(&[u8], usize)]) -> Self {
        const ZEROES: &[u8] = &[0; 64 * 1024];
        let plain: usize = parts.iter().map(|(bytes, zeroes)| bytes.len() + zeroes).sum();
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        for (bytes, zeroes) in parts {
            encoder.write_all(bytes).unwrap();
            let mut left = *zeroes;
            while left > 0 {
                let step = left.min(ZEROES.len());
                encoder.write_all(&ZEROES[..step]).unwrap();
                left -= step;
            }
        }
        let stored = encoder.finish().unwrap();
        let mut header = b"TWSN\x02".to_vec();
        header.extend_from_slice(&[kind, 2, 0]);
        header.extend_from_slice(&self.number.to_le_bytes());
        for field in [stored.len() as u32, plain as u32, self.chain] {
            header.extend_from_slice(&field.to_le_bytes());
        }
        self.chain = thalweg_log::crc32c(&[&header[..], &stored].concat());
        self.number += 1;
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(&self.chain.to_le_bytes());
        self.bytes.extend_from_slice(&stored);
        self
    }

    fn end(self, rows: u64, row_bytes: u64) -> Self {
        let numbers = [rows, row_bytes, 0, 0, 0].map(u64::to_le_bytes).concat();
        self.with(END, &[(&numbers, 0)])
    }
}

/// Returns the beginning of a row with an inline value, whose last bytes are `zeroes` zeroes.
fn row(key: u8, zeroes: usize) -> Vec<u8> {
    let mut row = b"\0\x06\0".to_vec();
    row.extend_from_slice(&(9 + zeroes as u32).to_le_bytes());
    row.extend_from_slice(&[0x10, 0, 0, 0, 1, key]);
    row.extend_from_slice(b"\0\x01\0\0\0\0\0\0\0");
    row
}

/// Runs a command. Returns the largest amount of its memory in KiB, and its error output.
#[allow(clippy::zombie_processes, reason = "`wait4` waits for the process, and also returns what it used")]
fn memory_of(args: &[&str]) -> (i64, String) {
    let mut child =
        command().args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut error = String::new();
    child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    let mut status = 0;
    // SAFETY: the structure consists of numbers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let pid = i32::try_from(child.id()).unwrap();
    // SAFETY: the pid is of a child that has not been waited for, and both pointers are valid during the call.
    assert_eq!(unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) }, pid);
    let status = std::process::ExitStatus::from_raw(status);
    assert!(status.code().is_some(), "{args:?}: {status}");
    (usage.ru_maxrss, error)
}

/// Backends that a backup is restored into. That of the memory is not among them: it holds all rows.
const BACKENDS: [&str; 3] = ["lsm", "redb", "sqlite"];
/// Number of commands that read a backup: `verify`, `show`, and a restore into each of the backends.
const COMMANDS: usize = 2 + BACKENDS.len();

/// Commands that read a backup, and the directory in which they do so.
struct Commands<'a> {
    root: &'a Path,
    /// Largest amount of memory in KiB that each of the commands needs for an empty backup.
    empty: [i64; COMMANDS],
}

impl<'a> Commands<'a> {
    fn new(root: &'a Path) -> Self {
        let mut commands = Self { root, empty: [0; COMMANDS] };
        let runs = commands.run("empty", &Forgery::new(FULL, 0, 100).end(0, 0));
        commands.empty = runs.map(|(memory, _)| memory);
        commands
    }

    fn run(&self, name: &str, forged: &Forgery) -> [(i64, String); COMMANDS] {
        let file = write(self.root, name, forged);
        std::array::from_fn(|command| match command {
            0 => memory_of(&["backup", "verify", &file]),
            1 => memory_of(&["backup", "show", &file]),
            _ => {
                let backend = BACKENDS[command - 2];
                let data = self.root.join(format!("{name}-{backend}"));
                memory_of(&["restore", &file, "--backend", backend, "--data", data.to_str().unwrap()])
            }
        })
    }

    /// Runs all commands with a backup, and requires that each of them stays within the bound.
    fn check(&self, name: &str, forged: &Forgery) {
        self.check_within(name, forged, [MOST_KIB; COMMANDS]);
    }

    fn check_within(&self, name: &str, forged: &Forgery, most: [i64; COMMANDS]) {
        let runs = self.run(name, forged);
        for (command, (((memory, error), empty), most)) in runs.iter().zip(self.empty).zip(most).enumerate() {
            assert!(memory - empty < most, "{name} {command}: {memory} KiB, {empty} KiB for an empty backup: {error}");
        }
    }
}

fn write(root: &Path, name: &str, forged: &Forgery) -> String {
    let file = root.join(format!("{name}.tws"));
    fs::File::create(&file).unwrap().write_all(&forged.bytes).unwrap();
    assert!(forged.bytes.len() <= 8 * 1024, "{name} has {} bytes", forged.bytes.len());
    file.to_str().unwrap().to_owned()
}

#[test]
fn a_small_backup_needs_little_memory() {
    let root = tempfile::tempdir().unwrap();
    let commands = Commands::new(root.path());
    let most = 64 * MIB;
    commands.check("begin", &Forgery::empty().with(BEGIN, &[(b"", most)]));
    let full = || Forgery::new(FULL, 0, 100);
    commands.check("empty-rows", &full().with(ROWS, &[(b"", most)]).end(0, 0));
    // A sound row, and then millions of the smallest ones.
    let sound = row(b'a', 0);
    commands.check("small-rows", &full().with(ROWS, &[(&sound, most - sound.len())]).end(0, 0));
    let mut claims = sound.clone();
    claims[3..7].copy_from_slice(&(60 * MIB as u32).to_le_bytes());
    commands.check("one-row", &full().with(ROWS, &[(&claims, most - claims.len())]).end(1, 0));
    commands.check("end", &full().with(END, &[(b"", most)]));
    commands.check("entries", &Forgery::new(INCREMENT, 0, 100).with(ENTRIES, &[(b"", most)]).end(0, 0));
    // Rows as a node could have them, which decompress to 56 MiB, and which a restore writes.
    let rows: Vec<_> = (b'a'..b'i').map(|key| row(key, 7 * MIB)).collect();
    let parts: Vec<_> = rows.iter().map(|row| (&row[..], 7 * MIB)).collect();
    let bytes = rows.iter().map(|row| (row.len() - 7 + 7 * MIB) as u64).sum();
    let most = std::array::from_fn(|command| if command < 2 { MOST_KIB } else { MOST_KIB_OF_LARGE_ROWS });
    commands.check_within("large-values", &full().with(ROWS, &parts).end(8, bytes), most);
}
