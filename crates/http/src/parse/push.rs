//! Query parameters of requests that push records of a consumer group to a member.

use std::borrow::Cow;

use super::{
    ParseError,
    query::{number, positive, query},
};

query! {
    /// Query parameters of `GET /v1/streams/{stream}/groups/{group}/push`.
    #[derive(Default)]
    pub(crate) struct PushQuery {
        /// Name of the member that receives the records; `default` if missing.
        member: Option<String> = name_of_member,
        /// Number of records that the member may hold without an ack or nack; 100 if missing, 4,000 at most.
        credit_records: Option<u32> = positive_u32,
        /// Bytes of records that the member may hold without an ack or nack; 4 MiB if missing, 64 MiB at most.
        credit_bytes: Option<u64> = positive,
        /// Number of records after which the server ends the subscription.
        limit: Option<u64> = number,
        /// True to nack the records that the member still holds, immediately when the connection ends.
        release: bool = parse_bool,
    }
}

fn name_of_member(name: &'static str, value: Cow<'_, [u8]>) -> Result<String, ParseError> {
    String::from_utf8(value.into_owned()).map_err(|_| ParseError::BadParameter { name, expected: "text" })
}

fn positive_u32(name: &'static str, value: impl AsRef<[u8]>) -> Result<u32, ParseError> {
    positive(name, value).map(|number| u32::try_from(number).unwrap_or(u32::MAX))
}

fn parse_bool(name: &'static str, value: impl AsRef<[u8]>) -> Result<bool, ParseError> {
    match value.as_ref() {
        b"true" => Ok(true),
        b"false" => Ok(false),
        _ => Err(ParseError::BadParameter { name, expected: "true or false" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_at_least_one_and_nothing_is_passed_over() {
        let query = PushQuery::parse(Some("member=a%20b&credit_records=5&credit_bytes=10&limit=3&release=true"));
        let wanted = PushQuery {
            member: Some("a b".to_owned()),
            credit_records: Some(5),
            credit_bytes: Some(10),
            limit: Some(3),
            release: true,
        };
        assert_eq!(query, Ok(wanted));
        assert_eq!(PushQuery::parse(None), Ok(PushQuery::default()));
        assert_eq!(PushQuery::parse(Some("credit_records=5000000000")).unwrap().credit_records, Some(u32::MAX));
        for bad in
            ["credit_records=0", "credit_bytes=0", "release=1", "limit=x", "member=%FF", "limit=1&limit=1", "x=1"]
        {
            assert!(PushQuery::parse(Some(bad)).is_err(), "{bad}");
        }
    }
}
