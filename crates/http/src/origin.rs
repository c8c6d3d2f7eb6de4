//! Protection from websites: the check that decides which requests of a browser the server answers.
//!
//! A page of any website (another *origin*) can make its visitor's browser send requests to this node. The page can
//! name the node's address in an image, a form or a script. Or its own name can lead to the node's address, so that the
//! browser takes the node for the website (*DNS rebinding*). Programs other than browsers send neither `Origin` nor
//! `Sec-Fetch-Site`. Their requests only need a host name that belongs to the node.
//!
//! Browsers send `Sec-Fetch-Site` only to addresses that they trust: HTTPS and loopback. If a page requests an image or
//! a script from `http://10.0.0.5`, the browser sends neither header. Such a request only reads. So replies to reads
//! contain headers by which the browser withholds them from pages of other origins ([`withhold_from_other_origins`]).
//!
//! Owns: the check of `Host`, `Origin` and `Sec-Fetch-Site`, before a handler is chosen, and the headers that withhold
//! a reply. Does not own: the content types that routes require (`call`), or the rest of replies.
//!
//! Invariants: a request that names another host reaches no handler. If its headers show that a page of another origin
//! caused a request, it reaches only the handlers of [`HARMLESS`] paths, and only by a method that reads. Pages of
//! other origins can neither see nor embed replies to reads, except replies from these paths.

use std::{net::IpAddr, sync::OnceLock};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use thalweg_serving::{config::AllowedHosts, error::ApiError};
use thalweg_types::Action;

/// Header in which a browser states the relation between the page that caused a request and the server.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Paths that a page of another origin may request. They reveal nothing about stored data, and cost little.
const HARMLESS: [&str; 4] = ["/", "/health", "/ready", "/openapi.json"];

/// Header that tells a browser which pages may embed a reply.
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// Maximum length in bytes of a `Host` header that is remembered for the next requests of its connection.
const MAX_REMEMBERED: usize = 255;

/// Maximum number of characters that an error quotes from a client's text.
const MAX_SHOWN: usize = 64;

/// Reason why a request is rejected before it reaches a handler. The reply is made and counted like every other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Forbidden {
    /// The request names a host that is not allowed.
    Host(String),
    /// A page of another origin caused the request.
    Site(String),
}

impl From<Forbidden> for ApiError {
    fn from(forbidden: Forbidden) -> Self {
        let (code, message) = match forbidden {
            Forbidden::Host(host) => (
                "host_not_allowed",
                format!(
                    "the request names the host {host:?}, which is not a name of this node: use localhost or the \
                     address on which the node listens, or add the name to allowed_hosts (serve --allowed-hosts)"
                ),
            ),
            Forbidden::Site(site) => (
                "cross_site",
                format!(
                    "a browser sent this request for a page of another origin ({site}): only pages of this node may \
                     use it"
                ),
            ),
        };
        Self::new(StatusCode::FORBIDDEN, code, Action::Fix, message)
    }
}

/// Rules by which the server accepts or rejects the requests of one connection. They concern the host that a request
/// names, and the web page that caused it.
#[derive(Clone, Debug)]
pub(crate) struct OriginPolicy {
    allowed: AllowedHosts,
    /// Address of this machine at which the connection arrived; `None` if the system does not report it.
    local: Option<IpAddr>,
    /// First allowed `Host` header of the connection. Most clients send the same one with each request.
    allowed_host: OnceLock<Box<[u8]>>,
}

impl OriginPolicy {
    /// Creates the rules for a connection that arrived at the address `local`.
    #[must_use]
    pub(crate) fn new(allowed: &AllowedHosts, local: Option<IpAddr>) -> Self {
        let local = local.map(|address| address.to_canonical());
        Self { allowed: allowed.clone(), local, allowed_host: OnceLock::new() }
    }

    /// Checks a request. Returns an error with the reason if the request must be rejected.
    pub(crate) fn check<B>(&self, request: &Request<B>) -> Result<(), Forbidden> {
        let (method, uri, headers) = (request.method(), request.uri(), request.headers());
        // HTTP/2 states the host in the target, and HTTP/1.1 may do so too. Each host that the request states must be
        // allowed.
        if let Some(authority) = uri.authority() {
            self.check_host(authority.as_str().as_bytes())?;
        }
        // One pass over all headers is cheaper than a search for each name.
        let mut is_of_browser = false;
        for (name, value) in headers {
            if name == header::HOST {
                self.check_host(value.as_bytes())?;
            } else {
                is_of_browser |= name == SEC_FETCH_SITE || name == header::ORIGIN;
            }
        }
        let reads = matches!(*method, Method::GET | Method::HEAD);
        if !is_of_browser || reads && HARMLESS.contains(&uri.path()) {
            return Ok(());
        }
        for site in headers.get_all(SEC_FETCH_SITE) {
            if !matches!(site.as_bytes(), b"same-origin" | b"none") {
                return Err(Forbidden::Site(shown(site.as_bytes())));
            }
        }
        for origin in headers.get_all(header::ORIGIN) {
            let authority = uri.authority().map(|authority| authority.as_str().as_bytes());
            let host = authority.or_else(|| headers.get(header::HOST).map(HeaderValue::as_bytes));
            if !host.is_some_and(|host| is_same_origin(origin.as_bytes(), host)) {
                return Err(Forbidden::Site(shown(origin.as_bytes())));
            }
        }
        Ok(())
    }

    fn check_host(&self, host: &[u8]) -> Result<(), Forbidden> {
        if self.allowed_host.get().is_some_and(|allowed| **allowed == *host) {
            return Ok(());
        }
        let name = std::str::from_utf8(host).ok().and_then(without_port);
        if !name.is_some_and(|name| self.is_ours(name)) {
            return Err(Forbidden::Host(shown(host)));
        }
        if host.len() <= MAX_REMEMBERED {
            self.allowed_host.get_or_init(|| host.into());
        }
        Ok(())
    }

    /// Returns true for `name`, a host without a port, if it always leads to this machine or is configured.
    fn is_ours(&self, name: &str) -> bool {
        if name.eq_ignore_ascii_case("localhost") || name == "127.0.0.1" {
            return true;
        }
        let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
        match address.parse::<IpAddr>().map(|address| address.to_canonical()) {
            Ok(address) => {
                address.is_loopback() || self.local == Some(address) || self.allowed.allows(&address.to_string())
            }
            Err(_) => self.allowed.allows(name),
        }
    }
}

/// Returns true if the reply to a request must be withheld from pages of other origins. Such a page can cause a read
/// without `Origin` and `Sec-Fetch-Site`. Browsers send `Origin` with every request of another method.
pub(crate) fn must_withhold(method: &Method, path: &str) -> bool {
    matches!(*method, Method::GET | Method::HEAD) && !HARMLESS.contains(&path)
}

/// Adds headers for browsers: they show the reply to no page of another origin, and never guess that a reply of another
/// type is a script or a page.
pub(crate) fn withhold_from_other_origins(headers: &mut HeaderMap) {
    headers.insert(RESOURCE_POLICY, const { HeaderValue::from_static("same-origin") });
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, const { HeaderValue::from_static("nosniff") });
}

/// Returns a host without its port, and without a dot at the end of a name. `None` if the text is not a host.
fn without_port(host: &str) -> Option<&str> {
    let (name, port) = match host.strip_prefix('[') {
        Some(_) => host.split_at(host.find(']')? + 1),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let port_is_sound = port.is_empty() || port[1..].bytes().all(|byte| byte.is_ascii_digit()) && port.starts_with(':');
    let name = name.strip_suffix('.').unwrap_or(name);
    (port_is_sound && !name.is_empty()).then_some(name)
}

/// Returns true if `origin` names the host and port of the request, so that a page of this node sent the request. The
/// scheme is not compared, because a proxy in front of the node may add TLS.
fn is_same_origin(origin: &[u8], host: &[u8]) -> bool {
    let page = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
    page.is_some_and(|page| page.eq_ignore_ascii_case(host))
}

fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().take(MAX_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use thalweg_serving::config::Setting as _;

    use super::*;

    fn check(policy: &OriginPolicy, method: &Method, target: &str, headers: &[(&str, &str)]) -> Result<(), Forbidden> {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        policy.check(&request.body(()).unwrap())
    }

    fn policy(allowed: &str, local: &str) -> OriginPolicy {
        OriginPolicy::new(&AllowedHosts::parse(allowed).unwrap(), Some(local.parse().unwrap()))
    }

    #[test]
    fn names_of_this_machine_and_configured_names_are_served() {
        let policy = policy("db.example.com,fe80::7", "::ffff:10.0.0.5");
        let host = |host: &str| check(&policy, &Method::GET, "/v1/kv", &[("host", host)]).is_ok();
        for good in [
            "localhost",
            "LOCALHOST:7070",
            "localhost.:7070",
            "127.0.0.1:7070",
            "127.1.2.3",
            "[::1]:7070",
            "[::1]",
            "10.0.0.5:7070",
            "[::ffff:10.0.0.5]:7070",
            "db.example.com",
            "DB.example.com.:80",
            "[FE80::7]:7070",
        ] {
            assert!(host(good), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:7070",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.6",
            "0.0.0.0:7070",
            "[::]",
            "[::1",
            "",
            ":7070",
            "localhost:x",
            "localhost@evil.example",
            "evil.example@localhost",
            "example.com",
            "a.db.example.com",
        ] {
            assert!(!host(bad), "{bad}");
        }
        assert!(check(&policy, &Method::GET, "/", &[("host", "localhost"), ("host", "evil.example")]).is_err());
        assert!(check(&policy, &Method::GET, "http://localhost:7070/v1/kv", &[]).is_ok());
        assert!(check(&policy, &Method::GET, "http://evil.example/v1/kv", &[("host", "localhost")]).is_err());
        assert!(check(&policy, &Method::GET, "/v1/kv", &[]).is_ok(), "a browser always names a host");
        let any = self::policy("any", "10.0.0.5");
        assert!(check(&any, &Method::GET, "/v1/kv", &[("host", "evil.example")]).is_ok());
    }

    #[test]
    fn a_connection_with_an_allowed_host_is_asked_again_for_another() {
        let policy = policy("", "127.0.0.1");
        let host = |host: &str| check(&policy, &Method::GET, "/v1/kv", &[("host", host)]).is_ok();
        assert!(!host("evil.example") && host("localhost:7070") && host("localhost:7070"));
        assert!(!host("evil.example") && !host("localhost:7070.evil.example") && host("127.0.0.1:7070"));
        assert!(!host(&format!("{}localhost", "a.".repeat(MAX_REMEMBERED))));
    }

    #[test]
    fn pages_of_other_origins_get_harmless_pages_only() {
        let policy = policy("", "127.0.0.1");
        let sends = |method: Method, target: &str, name: &str, value: &str| {
            check(&policy, &method, target, &[("host", "localhost:7070"), (name, value)])
        };
        for site in ["cross-site", "same-site", "", "other"] {
            for method in [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
                assert_eq!(sends(method, "/v1/kv/a", "sec-fetch-site", site), Err(Forbidden::Site(site.to_owned())));
            }
            assert!(sends(Method::GET, "/health", "sec-fetch-site", site).is_ok());
            assert!(sends(Method::HEAD, "/?from=a-link", "sec-fetch-site", site).is_ok());
            assert!(sends(Method::POST, "/health", "sec-fetch-site", site).is_err());
            assert!(sends(Method::GET, "/metrics", "sec-fetch-site", site).is_err());
        }
        for site in ["same-origin", "none"] {
            assert!(sends(Method::PUT, "/v1/kv/a/b", "sec-fetch-site", site).is_ok());
        }
        for origin in ["null", "http://evil.example", "http://localhost:3000", "localhost:7070", "file://", "http://"] {
            assert!(sends(Method::POST, "/v1/txn", "origin", origin).is_err(), "{origin}");
            assert!(sends(Method::GET, "/ready", "origin", origin).is_ok(), "{origin}");
        }
        for origin in ["http://localhost:7070", "https://LOCALHOST:7070"] {
            assert!(sends(Method::POST, "/v1/txn", "origin", origin).is_ok(), "{origin}");
        }
        assert!(check(&policy, &Method::POST, "/v1/txn", &[("origin", "http://localhost")]).is_err(), "without a host");
    }

    #[test]
    fn an_error_shows_a_short_and_harmless_part_of_what_was_sent() {
        let host = "x".repeat(1000);
        let refused = check(&policy("", "::1"), &Method::GET, "/", &[("host", &host)]);
        assert_eq!(refused, Err(Forbidden::Host("x".repeat(MAX_SHOWN))));
        let error = ApiError::from(refused.unwrap_err());
        assert!(error.message.contains("allowed_hosts"), "{}", error.message);
    }
}
