//! Input of commands: the bytes of an argument, of a file or of stdin, and the lines of stdin in batches.

use std::{
    io::{BufRead as _, BufReader, IsTerminal as _, Read as _, Stdin},
    path::Path,
};

use thalweg_types::limits::{MAX_COMMAND_BYTES, MAX_VALUE_BYTES};

use crate::{failure::Failure, render};

/// Maximum number of lines, and maximum number of bytes, of a batch of lines from stdin.
const BATCH: (usize, usize) = (1000, 1024 * 1024);

/// Returns the bytes of a file.
pub(super) fn file(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| Failure::file(path, &error))
}

/// Returns a value: the argument, or the contents of stdin if the argument is `-` or missing.
pub(super) fn value(typed: Option<&str>) -> Result<Vec<u8>, Failure> {
    // Reads one byte more than a value may have, so that a longer value is rejected and not truncated.
    argument_or_stdin(typed, MAX_VALUE_BYTES as u64 + 1)
}

/// Returns a request in JSON: the argument, or the contents of stdin if the argument is `-` or missing.
pub(super) fn request(typed: Option<&str>) -> Result<Vec<u8>, Failure> {
    argument_or_stdin(typed, 4 * MAX_COMMAND_BYTES as u64)
}

fn argument_or_stdin(typed: Option<&str>, max_bytes: u64) -> Result<Vec<u8>, Failure> {
    match typed {
        None | Some("-") => {
            note_terminal();
            let mut bytes = Vec::new();
            std::io::stdin().lock().take(max_bytes).read_to_end(&mut bytes)?;
            Ok(bytes)
        }
        Some(text) => Ok(text.as_bytes().to_vec()),
    }
}

/// Prints a note if stdin is a terminal. The command then waits for input, which could look as if it hung.
fn note_terminal() {
    if std::io::stdin().is_terminal() {
        render::note("reading the terminal; Ctrl-D ends the input");
    }
}

/// The lines of stdin, in batches. A batch ends when stdin has no more lines ready, so that the lines of a slow
/// pipe are not delayed.
pub(super) struct Lines {
    input: BufReader<Stdin>,
}

impl Lines {
    pub(super) fn new() -> Self {
        note_terminal();
        Self { input: BufReader::with_capacity(BATCH.1, std::io::stdin()) }
    }

    /// Waits for at least one line of stdin. Returns the lines that are ready, without newlines; no lines at the
    /// end of the input.
    pub(super) fn next_batch(&mut self) -> Result<Vec<Vec<u8>>, Failure> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        loop {
            let mut line = Vec::new();
            if self.input.read_until(b'\n', &mut line)? == 0 {
                return Ok(batch);
            }
            line.pop_if(|last| *last == b'\n');
            bytes += line.len();
            batch.push(line);
            let more_at_hand = self.input.buffer().contains(&b'\n');
            if !more_at_hand || batch.len() >= BATCH.0 || bytes >= BATCH.1 {
                return Ok(batch);
            }
        }
    }
}
