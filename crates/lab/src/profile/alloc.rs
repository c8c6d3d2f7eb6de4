//! Recording the allocations of a server that was built with the feature `alloc-profile`.
//!
//! Owns: the client's side of the connection to the server, and reading the stacks. Does not own: sampling, which the
//! server does. The server's module `alloc_profile` describes the messages and the text.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixStream},
    },
    time::Duration,
};

use super::{
    kind::{Profile, ProfileKind},
    stacks::Stacks,
};
use crate::BenchError;

/// First bytes that the server sends. The server samples from then on.
const BEGUN: &[u8] = b"begun\n";
/// Bytes with which the client ends the recording.
const END: &[u8] = b"end\n";
/// Longest wait for the server to begin. The server may have to end another recording first.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for the next stack. Before the first stack, the server reads the symbols of its program.
const STACK_TIMEOUT: Duration = Duration::from_secs(120);
/// Number of bytes in a MiB. The weights of the stacks are in MiB.
const MEBIBYTE: f64 = 1_048_576.0;

/// A running recording of a server's allocations. Dropping it closes the connection to the server, which ends the
/// recording.
#[derive(Debug)]
pub(super) struct AllocRecording {
    stream: UnixStream,
    process: u32,
}

impl AllocRecording {
    /// Begins to record the allocations of a process.
    pub(super) fn begin(process: u32) -> Result<Self, BenchError> {
        let stream = connect(process).map_err(|error| BenchError::Profile {
            message: format!(
                "process {process} records no allocations ({error}): its user must be the same, or this one root, and its \
                 program be built with the feature alloc-profile (cargo build --release --features alloc-profile)"
            ),
        })?;
        Ok(Self { stream, process })
    }

    /// Ends the recording and reads the stacks of calls that have allocated memory.
    pub(super) fn end(self) -> Result<Profile, BenchError> {
        let process = self.process;
        self.read().map_err(|error| BenchError::Profile {
            message: format!("the recording of the allocations of process {process} ended: {error}"),
        })
    }

    fn read(mut self) -> io::Result<Profile> {
        self.stream.set_read_timeout(Some(STACK_TIMEOUT))?;
        self.stream.write_all(END)?;
        parse(BufReader::new(self.stream))
    }
}

fn connect(process: u32) -> io::Result<UnixStream> {
    let address = SocketAddr::from_abstract_name(format!("thalweg-alloc-profile-{process}"))?;
    let mut stream = UnixStream::connect_addr(&address)?;
    stream.set_read_timeout(Some(BEGIN_TIMEOUT))?;
    let mut begun = [0; BEGUN.len()];
    stream.read_exact(&mut begun)?;
    if begun == BEGUN { Ok(stream) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Parses stacks, one on each line: bytes, samples, thread, and functions from the outermost on, separated by tabs.
fn parse(text: impl BufRead) -> io::Result<Profile> {
    let (mut stacks, mut samples, mut nameless) = (Stacks::in_unit("MiB"), 0, 0);
    for line in text.lines() {
        let line = line?;
        let mut parts = line.split('\t');
        let mut number = || parts.next()?.parse::<u64>().ok();
        let (Some(bytes), Some(count)) = (number(), number()) else { return Err(io::ErrorKind::InvalidData.into()) };
        let frames: Vec<&str> = parts.collect();
        samples += count;
        if !frames.iter().skip(1).any(|frame| frame.contains("::")) {
            nameless += count;
        }
        stacks.add(frames, bytes as f64 / MEBIBYTE);
    }
    let nameless = nameless as f64 / (samples as f64).max(1.0);
    Ok(Profile { kind: ProfileKind::Alloc, stacks, samples, nameless })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_stacks_in_mebibytes() {
        let text = "1048576\t2\tworker\tmain\tthalweg_log::append\n524288\t1\tworker\t<unknown>\n";
        let profile = parse(text.as_bytes()).unwrap();
        assert_eq!((profile.samples, profile.stacks.unit(), profile.stacks.root().weight), (3, "MiB", 1.5));
        assert_eq!(profile.stacks.functions(1), [("thalweg_log::append".to_owned(), 1.0, 1.0)]);
        assert!((profile.nameless - 1.0 / 3.0).abs() < 1e-9);
        for wrong in ["x\t1\tt\n", "5\n", "\n", "1\t-1\tt\n"] {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
        assert_eq!(parse(&b""[..]).unwrap().samples, 0);
    }

    #[test]
    fn a_process_that_records_nothing_is_an_error_with_a_remedy() {
        let error = AllocRecording::begin(u32::MAX).unwrap_err().to_string();
        assert!(error.contains("--profile") && error.contains("--features alloc-profile"), "{error}");
    }
}
