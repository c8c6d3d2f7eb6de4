//! Query parameters of a push.

use super::{
    ParseError,
    query::{Params, number, once, unknown},
};

/// Query parameters of `GET /v1/streams/{stream}/groups/{group}/push`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PushQuery {
    /// Name of the member that receives.
    pub member: Option<String>,
    /// Credit in records: how many the member may hold unsettled.
    pub credit_records: Option<u32>,
    /// Credit in bytes of unsettled records.
    pub credit_bytes: Option<u64>,
    /// Number of records after which the push ends.
    pub limit: Option<u64>,
    /// True if the server nacks unsettled records when the connection ends.
    pub release: bool,
}

impl PushQuery {
    /// Parses a query string.
    pub(crate) fn parse(query: Option<&str>) -> Result<Self, ParseError> {
        let (mut member, mut records, mut bytes, mut limit, mut release) = (None, None, None, None, None);
        for pair in Params::new(query) {
            let (name, value) = pair?;
            match &*name {
                "member" => {
                    let text = String::from_utf8(value.into_owned());
                    let bad = |_| ParseError::BadParameter { name: "member", expected: "text" };
                    once(&mut member, "member", text.map_err(bad)?)?;
                }
                "credit_records" => once(&mut records, "credit_records", positive("credit_records", &value)?)?,
                "credit_bytes" => once(&mut bytes, "credit_bytes", positive("credit_bytes", &value)?)?,
                "limit" => once(&mut limit, "limit", number("limit", &value)?)?,
                "release" => once(&mut release, "release", truth(&value)?)?,
                other => return unknown(other),
            }
        }
        let credit_records = records.map(|records| u32::try_from(records).unwrap_or(u32::MAX));
        Ok(Self { member, credit_records, credit_bytes: bytes, limit, release: release.unwrap_or(false) })
    }
}

fn positive(name: &'static str, value: &[u8]) -> Result<u64, ParseError> {
    let number: u64 = number(name, value)?;
    if number == 0 { Err(ParseError::BadParameter { name, expected: "at least 1" }) } else { Ok(number) }
}

fn truth(value: &[u8]) -> Result<bool, ParseError> {
    match value {
        b"true" => Ok(true),
        b"false" => Ok(false),
        _ => Err(ParseError::BadParameter { name: "release", expected: "true or false" }),
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
