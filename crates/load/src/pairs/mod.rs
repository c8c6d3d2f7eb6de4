//! Operations on keys of keyspaces and caches over HTTP, RESP and the native protocol. Each value that is read can be
//! checked, even while other connections write.
//!
//! Owns: requests and replies of each protocol ([`Codec`]), values that contain their key and version ([`Records`]),
//! and the writes so far, which bound the version that a read may return ([`Ledger`]). Does not own: the mix of
//! operations, or the pace of requests.

mod codec;
mod ledger;
mod native;
mod records;
mod rows;
mod templates;

pub use self::{
    codec::{Answer, Codec, Content, HttpCodec, RespCodec, decode_http, http_level},
    ledger::{Ledger, Write},
    native::NativeCodec,
    records::{HEAD_BYTES, Records},
    rows::{RowCheck, shown},
    templates::{HttpTemplates, RequestTemplate, Template, TemplateCodec},
};
