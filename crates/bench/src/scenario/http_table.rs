//! Table `[http]` of scenario files: requests to HTTP servers that do not have Thalweg's key-value API.

use serde::Deserialize;

use super::mix::{Kind, Mix};
use crate::load::pairs::{HttpTemplates, RequestTemplate, Template};

/// Headers that the load generator writes itself.
const OWN_HEADERS: [&str; 3] = ["host", "content-length", "transfer-encoding"];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HttpTable {
    read: RequestTable,
    write: RequestTable,
    /// Body that the server's reply to a read has, with a placeholder for the value.
    #[serde(default = "only_value")]
    reply: String,
    #[serde(default)]
    headers: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestTable {
    method: String,
    path: String,
    body: Option<String>,
}

fn only_value() -> String {
    "{value}".to_owned()
}

impl HttpTable {
    /// Converts the table `[http]` to templates of requests. Returns an error that names a field if the field's value
    /// cannot be used in a request.
    pub(super) fn resolve(self, mix: &Mix) -> Result<HttpTemplates, String> {
        let is_usable = |kind: Kind| kind.uses_keyspace() && kind != Kind::Scan;
        if let Some(kind) = mix.kinds().find(|kind| !is_usable(*kind)) {
            return Err(format!("mix.{}: [http] has requests for reads and writes of keys only", kind.name()));
        }
        let write_body = self.write.body.clone().unwrap_or_else(only_value);
        let read = self.read.resolve("http.read")?;
        let write = RequestTable { body: Some(write_body), ..self.write }.resolve("http.write")?;
        if write.path.values() + write.body.values() == 0 {
            return Err("http.write: neither path nor body has a place for {value}".to_owned());
        }
        if read.path.values() + read.body.values() > 0 {
            return Err("http.read: a read has no {value}".to_owned());
        }
        let reply = Template::new(&self.reply);
        if reply.has_key() || reply.values() > 1 {
            return Err("http.reply: it has one place for {value} and none for {key}".to_owned());
        }
        let headers: Result<String, String> = self.headers.iter().map(|header| header_line(header)).collect();
        Ok(HttpTemplates { read, write, reply, headers: headers? })
    }
}

impl RequestTable {
    fn resolve(self, field: &str) -> Result<RequestTemplate, String> {
        let Self { method, path, .. } = self;
        let can_be_sent = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
        if !can_be_sent || method == "HEAD" || method == "CONNECT" {
            return Err(format!("{field}.method: {method:?} is no method such as GET, PUT or POST"));
        }
        if !path.starts_with('/') || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("{field}.path: must begin with / and have no spaces"));
        }
        let (path, body) = (Template::new(&path), Template::new(self.body.as_deref().unwrap_or_default()));
        if !path.has_key() && !body.has_key() {
            return Err(format!("{field}: neither path nor body has a place for {{key}}"));
        }
        Ok(RequestTemplate { method, path, body })
    }
}

/// Returns the line of a header with its line end.
fn header_line(header: &str) -> Result<String, String> {
    let is_own = |name: &str| OWN_HEADERS.iter().any(|own| name.trim().eq_ignore_ascii_case(own));
    match header.split_once(':') {
        Some((name, _)) if !name.is_empty() && !is_own(name) && !header.contains(char::is_control) => {
            Ok(format!("{header}\r\n"))
        }
        _ => Err(format!(
            "http.headers: {header:?} is no header such as \"Accept: text/plain\", or one of the generator"
        )),
    }
}
