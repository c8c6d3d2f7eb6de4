//! All frames of the protocol: their numbers, their senders and their contents.
//!
//! Owns: [`Kind`], [`ClientFrame`] and [`ServerFrame`]; the modules below own the fields of the frames. Each frame is a
//! struct, and its fields are its layout. Does not own: the rules for the order of frames, which are in
//! `docs/formats/wire.md`.
//!
//! A kind is a 16-bit number. Its high byte is the area, such as connections or streams. Except in area 0, its low byte
//! shows the direction: below hexadecimal `40` requests, from `40` on replies, from `80` on pushed frames, which the
//! server sends without a request. So a peer can tell these three apart even if it does not know their kinds.

mod cache;
mod connection;
mod groups;
mod kv;
mod node;
mod streams;
mod subjects;
mod watches;
mod write;

use thalweg_types::{
    Action, Classified,
    codec::{EncodeError, Field, Malformed, Reader, Structure},
};

pub use cache::*;
pub use connection::*;
pub use groups::*;
pub use kv::*;
pub use node::*;
pub use streams::*;
pub use subjects::*;
pub use watches::*;
pub use write::*;

use crate::{
    decoder::RawFrame,
    header::{Fields, FieldsError, put_frame},
};

/// Kinds reserved for authentication, which is not implemented: `auth` and its answer.
pub const RESERVED_KINDS: [(u16, &str); 2] = [(0x0006, "auth"), (0x0007, "auth answer")];

/// Error returned when a frame cannot be decoded. The channel (a TCP connection or a QUIC stream) stays usable, because
/// the frame's end and id are known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// This version of the protocol does not know the frame's kind.
    #[error("unknown kind of frame {kind:#06x}: the peer is newer, or the kind is not part of the protocol yet")]
    UnknownKind {
        /// Number of the frame's kind, which this version does not know.
        kind: u16,
    },
    /// The frame has a kind that only the other side may send.
    #[error("only the other side sends a {} frame", kind.name())]
    WrongDirection {
        /// Kind of the received frame, which only the other side may send.
        kind: Kind,
    },
    /// The frame has an optional field that the receiver must understand, but this version does not know the field.
    #[error("unknown required field {tag:#06x}: this side is older; leave out the field")]
    UnknownField {
        /// Number that identifies the unknown optional field.
        tag: u16,
    },
    /// The frame does not follow the format.
    #[error("malformed {kind} frame: {malformed}")]
    Malformed {
        /// Name of the frame's kind, or of the part that is malformed.
        kind: &'static str,
        /// Position of the fault in the frame, and its cause.
        malformed: Malformed,
    },
}

impl Classified for DecodeError {
    fn code(&self) -> &'static str {
        match self {
            Self::UnknownKind { .. } => "unknown_kind",
            Self::WrongDirection { .. } => "wrong_direction",
            Self::UnknownField { .. } => "unknown_field",
            Self::Malformed { .. } => "malformed_frame",
        }
    }

    fn action(&self) -> Action {
        Action::Fix
    }
}

/// Side of a connection that sends a kind of frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// Only clients send frames of this kind.
    Client,
    /// Only servers send frames of this kind.
    Server,
    /// Both sides send frames of this kind.
    Both,
}

/// Role of a kind of frame in the exchange of requests and replies between a client and a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The frame is about the connection itself, and has no id.
    Connection,
    /// The frame controls the request or subscription in progress with its id. It gets no reply.
    Control,
    /// The frame is a request, which gets one reply.
    Request,
    /// The frame requests a subscription. It gets one reply; frames with data may follow, and finally [`Ended`].
    Subscription,
    /// The frame is the reply to a request.
    Reply,
    /// The frame carries data for the subscription with its id, or for the subscriptions that it lists.
    Push,
}

/// A type that represents the body of one kind of frame.
pub trait Frame<'a>: Field<'a> + Structure {
    /// Kind of the frame that the type represents.
    const KIND: Kind;

    /// Appends the encoded frame with optional fields to `out`. On error `out` is unchanged.
    fn encode_with(&self, out: &mut Vec<u8>, id: u32, fields: &Fields<'_>) -> Result<(), EncodeError> {
        put_frame(out, Self::KIND as u16, id, fields, |out| self.put(out))
    }

    /// Appends the encoded frame without optional fields to `out`. On error `out` is unchanged.
    #[inline]
    fn encode(&self, out: &mut Vec<u8>, id: u32) -> Result<(), EncodeError> {
        self.encode_with(out, id, &Fields::default())
    }

    /// Decodes the body of a frame of this kind. Bytes that remain after the body are an error.
    #[inline]
    fn decode_body(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::at(body, 0);
        let malformed = |malformed| DecodeError::Malformed { kind: Self::NAME, malformed };
        let frame = Self::take(&mut reader, Self::NAME).map_err(malformed)?;
        if reader.is_empty() {
            Ok(frame)
        } else {
            Err(malformed(Malformed { at: reader.position(), expected: "end of the frame" }))
        }
    }
}

/// Defines the kinds of frames, each with its number, sender and role.
macro_rules! kinds {
    ($($kind:ident $(<$lt:lifetime>)? = $code:literal $sender:ident $role:ident,)*) => {
        /// Kind of a frame: the number in its header.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        #[allow(missing_docs)]
        pub enum Kind {
            $($kind = $code,)*
        }

        impl Kind {
            /// All kinds of frames.
            pub const ALL: &'static [Self] = &[$(Self::$kind,)*];

            /// Returns the kind of frame that has this number in frame headers.
            #[inline]
            #[must_use]
            pub const fn from_code(code: u16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$kind),)*
                    _ => None,
                }
            }

            /// Name of this kind of frame in `docs/formats/wire.md`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $kind::NAME,)*
                }
            }

            /// Side of a connection that sends frames of this kind: the client, the server or both.
            #[must_use]
            pub const fn sender(self) -> Sender {
                match self {
                    $(Self::$kind => Sender::$sender,)*
                }
            }

            /// Role of this kind of frame, such as request or reply.
            #[must_use]
            pub const fn role(self) -> Role {
                match self {
                    $(Self::$kind => Role::$role,)*
                }
            }

            /// Layout of the body of this kind of frame, in the notation of `docs/formats/wire.md`.
            #[must_use]
            pub fn definition(self) -> String {
                match self {
                    $(Self::$kind => $kind::definition(),)*
                }
            }
        }

        $(impl<'a> Frame<'a> for $kind $(<$lt>)? { const KIND: Kind = Kind::$kind; })*
    };
}

/// Defines the enum of all frames that one side sends.
macro_rules! sent_frames {
    ($(#[$doc:meta])* $name:ident { $($frame:ident $(<$lt:lifetime>)?,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum $name<'a> {
            $($frame($frame $(<$lt>)?),)*
        }

        impl<'a> $name<'a> {
            /// Decodes a received frame, which must be of a kind that this enum contains. Frames that only the other
            /// side may send are an error.
            #[inline]
            pub fn decode(raw: RawFrame<'a>) -> Result<Envelope<'a, Self>, DecodeError> {
                let code = raw.header.kind;
                let (fields, body) = split(raw)?;
                let frame = match Kind::from_code(code) {
                    $(Some(Kind::$frame) => Self::$frame(Frame::decode_body(body)?),)*
                    Some(kind) => return Err(DecodeError::WrongDirection { kind }),
                    None => return Err(DecodeError::UnknownKind { kind: code }),
                };
                Ok(Envelope { id: raw.header.id, fields, frame })
            }

            /// Appends the encoded frame to `out`. On error `out` is unchanged.
            pub fn encode(&self, out: &mut Vec<u8>, id: u32, fields: &Fields<'_>) -> Result<(), EncodeError> {
                match self {
                    $(Self::$frame(frame) => frame.encode_with(out, id, fields),)*
                }
            }

            /// Returns the kind of the frame that this value contains.
            #[must_use]
            pub fn kind(&self) -> Kind {
                match self {
                    $(Self::$frame(_) => Kind::$frame,)*
                }
            }
        }
    };
}

macro_rules! frames {
    (
        client { $($client:ident $(<$client_lt:lifetime>)? = $client_code:literal $client_role:ident,)* }
        server { $($server:ident $(<$server_lt:lifetime>)? = $server_code:literal $server_role:ident,)* }
        both { $($both:ident $(<$both_lt:lifetime>)? = $both_code:literal $both_role:ident,)* }
    ) => {
        kinds! {
            $($client $(<$client_lt>)? = $client_code Client $client_role,)*
            $($server $(<$server_lt>)? = $server_code Server $server_role,)*
            $($both $(<$both_lt>)? = $both_code Both $both_role,)*
        }

        sent_frames! {
            /// A frame that a client sends.
            ClientFrame { $($client $(<$client_lt>)?,)* $($both $(<$both_lt>)?,)* }
        }

        sent_frames! {
            /// A frame that a server sends.
            #[allow(clippy::large_enum_variant)]
            ServerFrame { $($server $(<$server_lt>)?,)* $($both $(<$both_lt>)?,)* }
        }
    };
}

frames! {
    client {
        Hello<'a> = 0x0001 Connection,
        Cancel = 0x0008 Control,
        Credit = 0x0009 Control,

        Write<'a> = 0x0100 Request,
        Get<'a> = 0x0101 Request,
        MultiGet<'a> = 0x0102 Request,
        Scan<'a> = 0x0103 Request,
        Versions<'a> = 0x0104 Request,
        FindKeyspace<'a> = 0x0105 Request,
        ListKeyspaces = 0x0106 Request,
        FindLease = 0x0107 Request,
        ListLeases = 0x0108 Request,
        WriteAndPublish<'a> = 0x0109 Request,

        Read = 0x0200 Request,
        Tail = 0x0201 Subscription,
        FindStream<'a> = 0x0202 Request,
        ListStreams = 0x0203 Request,
        FindOffset = 0x0204 Request,
        ListProducers<'a> = 0x0205 Request,

        Fetch<'a> = 0x0300 Request,
        Push<'a> = 0x0301 Subscription,
        FindGroup<'a> = 0x0302 Request,
        ListGroups = 0x0303 Request,

        Watch<'a> = 0x0400 Subscription,

        Publish<'a> = 0x0500 Request,
        Subscribe<'a> = 0x0501 Subscription,
        Ask<'a> = 0x0502 Request,

        CacheGet<'a> = 0x0600 Request,
        CachePut<'a> = 0x0601 Request,
        CacheDelete<'a> = 0x0602 Request,
        CacheTouch<'a> = 0x0603 Request,
        CacheAdd<'a> = 0x0604 Request,
        CacheMultiGet<'a> = 0x0605 Request,
        CacheMultiPut<'a> = 0x0606 Request,
        CacheScan = 0x0607 Request,
        CacheClear = 0x0608 Request,
        OpenCache<'a> = 0x0610 Request,
        DropCache = 0x0611 Request,
        ReadCacheStats = 0x0612 Request,

        ReadStatus = 0x0700 Request,
        ReadMembers = 0x0701 Request,
        WatchCluster = 0x0702 Subscription,
    }
    server {
        Welcome<'a> = 0x0002 Connection,
        Failed<'a> = 0x000a Reply,
        Ended<'a> = 0x000b Push,

        Committed<'a> = 0x0140 Reply,
        Transacted<'a> = 0x0141 Reply,
        Done = 0x0142 Reply,
        Created = 0x0143 Reply,
        Granted = 0x0144 Reply,
        ProducerOpened = 0x0145 Reply,
        Settled<'a> = 0x0146 Reply,
        Extended<'a> = 0x0147 Reply,
        Sought = 0x0148 Reply,
        Value<'a> = 0x0150 Reply,
        Entries<'a> = 0x0151 Reply,
        Pairs<'a> = 0x0152 Reply,
        VersionList<'a> = 0x0153 Reply,
        KeyspaceFound = 0x0154 Reply,
        KeyspaceList<'a> = 0x0155 Reply,
        LeaseFound<'a> = 0x0156 Reply,
        LeaseList<'a> = 0x0157 Reply,

        Records<'a> = 0x0240 Reply,
        Tailing = 0x0241 Reply,
        StreamFound = 0x0242 Reply,
        StreamList<'a> = 0x0243 Reply,
        OffsetFound = 0x0244 Reply,
        ProducerList<'a> = 0x0245 Reply,
        Tailed<'a> = 0x0280 Push,

        Delivery<'a> = 0x0340 Reply,
        Pushing = 0x0341 Reply,
        GroupFound = 0x0342 Reply,
        GroupList<'a> = 0x0343 Reply,
        Pushed<'a> = 0x0380 Push,

        Watching = 0x0440 Reply,
        Changes<'a> = 0x0480 Push,

        Published = 0x0540 Reply,
        Subscribed = 0x0541 Reply,
        Answer<'a> = 0x0542 Reply,
        Deliver<'a> = 0x0580 Push,
        Dropped = 0x0581 Push,

        CacheValue<'a> = 0x0640 Reply,
        CacheStored = 0x0641 Reply,
        CacheDone = 0x0642 Reply,
        CacheCounter = 0x0643 Reply,
        CacheEntries<'a> = 0x0644 Reply,
        CacheKeys<'a> = 0x0645 Reply,
        CacheOpened = 0x0650 Reply,
        CacheStats<'a> = 0x0651 Reply,

        Status<'a> = 0x0740 Reply,
        Members<'a> = 0x0741 Reply,
        WatchingCluster = 0x0742 Reply,
        ClusterEvents<'a> = 0x0780 Push,
    }
    both {
        Goodbye<'a> = 0x0003 Connection,
        Ping = 0x0004 Connection,
        Pong = 0x0005 Connection,
    }
}

/// A decoded frame together with its id and optional fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope<'a, F> {
    /// Id of the request or subscription that the frame belongs to.
    pub id: u32,
    /// Optional fields of the frame.
    pub fields: Fields<'a>,
    /// Decoded body of the frame.
    pub frame: F,
}

/// Splits the bytes after a frame's header into the decoded optional fields and the undecoded body.
#[inline]
fn split(raw: RawFrame<'_>) -> Result<(Fields<'_>, &[u8]), DecodeError> {
    let malformed = |malformed| DecodeError::Malformed { kind: "optional fields of a", malformed };
    let fields = usize::from(raw.header.fields);
    let Some((fields, body)) = raw.payload.split_at_checked(fields) else {
        return Err(malformed(Malformed { at: raw.payload.len(), expected: "optional fields" }));
    };
    let fields = Fields::decode(fields).map_err(|error| match error {
        FieldsError::Malformed(why) => malformed(why),
        FieldsError::Unknown { tag } => DecodeError::UnknownField { tag },
    })?;
    Ok((fields, body))
}

/// Returns the name and the layout of every structure that frames contain, as `(name, definition)`.
#[must_use]
pub fn structures() -> Vec<(&'static str, String)> {
    macro_rules! list {
        ($($name:ident)*) => { vec![$(($name::NAME, $name::definition()),)*] };
    }
    list!(
        Space Detail CancelMode Effect Values Order Count Entry Pair VersionState Version Keyspace KeyspaceCounts Lease
        LeaseKey Appended FailedCondition ScannedPair OperationResult Lapsed Position Permit RecordRun Stream Producer
        Release DeliveryPart Member Group WatchKeys ChangeKind Change Policy CacheTtl CacheExpect CacheCreate CachePair CacheEntry
        CacheFigures Health Figure MemberRole MemberHealth ClusterMember ClusterEvent
    )
}
