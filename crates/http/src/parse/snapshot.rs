//! Query parameters of a snapshot.

use thalweg_engine::snapshot::Compression;
use thalweg_types::Lsn;

use super::{
    ParseError,
    query::{Params, number, once, unknown},
};

/// Query parameters of `GET /v1/snapshot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotQuery {
    /// Begins a new snapshot.
    Take {
        /// LSN after which data is included; `None`: all data.
        since: Option<Lsn>,
        /// Compression of the chunks.
        compression: Compression,
    },
    /// Resumes an earlier snapshot.
    Resume {
        /// Name of the snapshot.
        name: u64,
        /// First chunk to send.
        chunk: u64,
    },
}

impl SnapshotQuery {
    /// Parses a query string.
    pub(crate) fn parse(query: Option<&str>) -> Result<Self, ParseError> {
        let (mut since, mut compression, mut resume, mut chunk) = (None, None, None, None);
        for pair in Params::new(query) {
            let (name, value) = pair?;
            match &*name {
                "since" => once(&mut since, "since", Lsn(number("since", &value)?))?,
                "compress" => once(&mut compression, "compress", method(&value)?)?,
                "resume" => once(&mut resume, "resume", hexadecimal(&value)?)?,
                "chunk" => once(&mut chunk, "chunk", number("chunk", &value)?)?,
                other => return unknown(other),
            }
        }
        match (resume, chunk, since, compression) {
            (None, None, since, compression) => Ok(Self::Take { since, compression: compression.unwrap_or_default() }),
            (Some(name), Some(chunk), None, None) => Ok(Self::Resume { name, chunk }),
            _ => {
                let expected = "given with chunk, and without since and compress";
                Err(ParseError::BadParameter { name: "resume", expected })
            }
        }
    }
}

fn method(value: &[u8]) -> Result<Compression, ParseError> {
    let known = std::str::from_utf8(value).ok().and_then(Compression::from_name);
    known.ok_or(ParseError::BadParameter { name: "compress", expected: "zstd, lz4 or none" })
}

fn hexadecimal(value: &[u8]) -> Result<u64, ParseError> {
    let digits = (1..=16).contains(&value.len()) && value.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(value).ok().filter(|_| digits);
    let number = text.and_then(|text| u64::from_str_radix(text, 16).ok());
    number.ok_or(ParseError::BadParameter { name: "resume", expected: "what Thalweg-Snapshot said" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_taken_or_gone_on_with() {
        let parse = |query| SnapshotQuery::parse(Some(query));
        let all = SnapshotQuery::Take { since: None, compression: Compression::Zstd };
        assert_eq!(SnapshotQuery::parse(None), Ok(all));
        let some = SnapshotQuery::Take { since: Some(Lsn(7)), compression: Compression::None };
        assert_eq!(parse("since=7&compress=none"), Ok(some));
        assert_eq!(parse("resume=00fF&chunk=3"), Ok(SnapshotQuery::Resume { name: 255, chunk: 3 }));
        for bad in
            ["resume=1", "chunk=1", "resume=1&chunk=1&since=1", "compress=gzip", "since=x", "resume=+1&chunk=1", "a=1"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
