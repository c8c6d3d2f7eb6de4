//! Query parameters of requests for a snapshot (a backup of the state).

use thalweg_engine::snapshot::Compression;
use thalweg_types::Lsn;

use super::{
    ParseError,
    query::{described, number, query, scalars},
};

scalars! {
    Compression: String Self::ALL.map(Self::name);
    Name: String;
}

/// Name of a snapshot, by which a client resumes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name(u64);

query! {
    /// Query parameters of `GET /v1/snapshot`, as the client sent them.
    struct SnapshotParams {
        /// LSN after which data is included; if missing, all data.
        since: Option<u64> = number,
        /// Compression of the chunks; zstd if missing.
        compress: Option<Compression> = method,
        /// Name of a snapshot to resume, from the header `Thalweg-Snapshot`. Requires `chunk`, and excludes `since` and
        /// `compress`.
        resume: Option<Name> = hexadecimal,
        /// Number of the first chunk to send when a snapshot is resumed. It may lie at most 64 chunks before the last
        /// chunk that was sent.
        chunk: Option<u64> = number,
    }
}

/// Request for a new snapshot or for the rest of an earlier one, from the query of `GET /v1/snapshot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotQuery {
    /// The client requests a new snapshot.
    Take {
        /// LSN after which data is included; `None` includes all data.
        since: Option<Lsn>,
        /// Compression of the snapshot's chunks.
        compression: Compression,
    },
    /// The client resumes an earlier snapshot.
    Resume {
        /// Name of the snapshot to resume.
        name: u64,
        /// Number of the first chunk to send.
        chunk: u64,
    },
}

impl SnapshotQuery {
    /// Parses the query string of a request for a snapshot.
    pub(crate) fn parse(query: Option<&str>) -> Result<Self, ParseError> {
        let SnapshotParams { since, compress, resume, chunk } = SnapshotParams::parse(query)?;
        match (resume, chunk, since.map(Lsn), compress) {
            (None, None, since, compression) => Ok(Self::Take { since, compression: compression.unwrap_or_default() }),
            (Some(Name(name)), Some(chunk), None, None) => Ok(Self::Resume { name, chunk }),
            _ => {
                let expected = "given with chunk, and without since and compress";
                Err(ParseError::BadParameter { name: "resume", expected })
            }
        }
    }
}

described!(SnapshotQuery as SnapshotParams);

fn method(name: &'static str, value: impl AsRef<[u8]>) -> Result<Compression, ParseError> {
    let known = std::str::from_utf8(value.as_ref()).ok().and_then(Compression::from_name);
    known.ok_or(ParseError::BadParameter { name, expected: "zstd, lz4 or none" })
}

fn hexadecimal(name: &'static str, value: impl AsRef<[u8]>) -> Result<Name, ParseError> {
    let value = value.as_ref();
    let digits = (1..=16).contains(&value.len()) && value.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(value).ok().filter(|_| digits);
    let number = text.and_then(|text| u64::from_str_radix(text, 16).ok());
    number.map(Name).ok_or(ParseError::BadParameter { name, expected: "a name from the header Thalweg-Snapshot" })
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
