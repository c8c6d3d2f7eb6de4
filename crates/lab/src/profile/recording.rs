//! Recording of a profile of any kind, by `perf` or by the server's allocator.

use std::path::Path;

use super::{
    alloc::AllocRecording,
    kind::{Profile, ProfileKind},
    perf::PerfRecording,
};
use crate::BenchError;

/// A profile of a process that is being recorded. Dropping it ends the recording.
#[derive(Debug)]
pub struct Recording(Recorder);

#[derive(Debug)]
enum Recorder {
    Perf(PerfRecording),
    Alloc(AllocRecording),
}

impl Recording {
    /// Checks that this kind of profile of a process can be recorded. Files are written to `dir`.
    pub fn check(kind: ProfileKind, process: u32, dir: &Path) -> Result<(), BenchError> {
        if kind == ProfileKind::Alloc {
            AllocRecording::begin(process).map(drop)
        } else {
            PerfRecording::check(kind, process, dir)
        }
    }

    /// Begins to record a profile of a process. Files are written to `dir`.
    pub fn begin(kind: ProfileKind, process: u32, dir: &Path) -> Result<Self, BenchError> {
        Ok(Self(if kind == ProfileKind::Alloc {
            Recorder::Alloc(AllocRecording::begin(process)?)
        } else {
            Recorder::Perf(PerfRecording::begin(kind, process, dir)?)
        }))
    }

    /// Ends the recording and reads its stacks. Reading can take as long as the recording.
    pub fn end(self) -> Result<Profile, BenchError> {
        match self.0 {
            Recorder::Perf(recording) => recording.end(),
            Recorder::Alloc(recording) => recording.end(),
        }
    }
}
