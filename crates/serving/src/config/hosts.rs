//! The setting with the host names by which HTTP clients may reach the node.

use std::{net::IpAddr, sync::Arc};

use super::Setting;

/// Longest host name that DNS permits, in bytes.
const MAX_HOST_BYTES: usize = 253;

/// Host names that HTTP accepts, in addition to localhost, loopback addresses, and the address at which a connection
/// arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedHosts {
    /// Requests may name any host.
    Any,
    /// Requests may name these hosts, in lower case and without a dot at the end. IP addresses are in canonical form.
    Names(Arc<[String]>),
}

impl Default for AllowedHosts {
    fn default() -> Self {
        Self::Names(Arc::default())
    }
}

impl AllowedHosts {
    /// Returns true if the setting permits `host`: a host name or address without a port, in upper or lower case.
    #[must_use]
    pub fn allows(&self, host: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Names(names) => names.iter().any(|name| name.eq_ignore_ascii_case(host)),
        }
    }
}

impl Setting for AllowedHosts {
    const VALUE_NAME: &'static str = "HOSTS";

    fn parse(text: &str) -> Result<Self, &'static str> {
        let expected = "any, or host names and addresses without scheme and port, joined by commas, such as \
             db.example.com,10.0.0.7";
        match text {
            "any" => return Ok(Self::Any),
            "" => return Ok(Self::default()),
            _ => {}
        }
        let names: Result<Vec<_>, _> = text.split(',').map(|name| host_name(name.trim()).ok_or(expected)).collect();
        Ok(Self::Names(names?.into()))
    }

    fn show(&self) -> String {
        match self {
            Self::Any => "any".to_owned(),
            Self::Names(names) => names.join(","),
        }
    }
}

/// Returns a host name or an address in the form used for comparisons; `None` if the text is neither.
fn host_name(text: &str) -> Option<String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Some(address.to_canonical().to_string());
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_name = (1..=MAX_HOST_BYTES).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    is_name.then(|| name.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_read_as_they_are_shown() {
        let hosts = AllowedHosts::parse("DB.example.com., 10.0.0.7,[FE80::1]").unwrap();
        assert_eq!(hosts.show(), "db.example.com,10.0.0.7,fe80::1");
        assert_eq!(AllowedHosts::parse(&hosts.show()), Ok(hosts.clone()));
        assert!(hosts.allows("db.EXAMPLE.com") && hosts.allows("10.0.0.7") && !hosts.allows("example.com"));
        assert_eq!(AllowedHosts::parse(""), Ok(AllowedHosts::default()));
        assert!(!AllowedHosts::default().allows("") && !AllowedHosts::default().allows("db"));
        assert!(AllowedHosts::parse("any").unwrap().allows("whatever"));
        for wrong in ["a,", "http://a", "a:80", "a/b", "*.a", "ä", "a b"] {
            assert!(AllowedHosts::parse(wrong).is_err(), "{wrong}");
        }
    }
}
