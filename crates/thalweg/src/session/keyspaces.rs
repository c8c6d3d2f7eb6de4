//! Requests for keyspaces. Descriptions and configurations have the JSON format of the API.

use serde_json::Value;
use thalweg_server::parse::encode;
use ureq::http::Method;

use super::{Session, http::RequestBuilder};
use crate::failure::Failure;

impl Session {
    /// Returns the keyspaces with their settings, as JSON of the HTTP API.
    pub(crate) fn keyspaces(&self) -> Result<Vec<Value>, Failure> {
        self.list("/v1/keyspaces", "keyspaces")
    }

    /// Returns the description of a keyspace with its statistics, as JSON of the HTTP API.
    pub(crate) fn keyspace(&self, name: &str) -> Result<Value, Failure> {
        self.http.json(RequestBuilder::get(path(name)))
    }

    /// Creates a keyspace, and returns its description; an existing keyspace is not changed.
    pub(crate) fn create_keyspace(&self, name: &str, config: &Value) -> Result<Value, Failure> {
        self.write_json(RequestBuilder::new(Method::PUT, path(name)).json(config))
    }

    /// Changes those settings of a keyspace that `config` contains. Other settings keep their values.
    pub(crate) fn configure_keyspace(&self, name: &str, config: &Value) -> Result<Value, Failure> {
        self.write(RequestBuilder::new(Method::PATCH, path(name)).json(config))?;
        self.keyspace(name)
    }

    pub(crate) fn drop_keyspace(&self, name: &str) -> Result<(), Failure> {
        self.write(RequestBuilder::delete(path(name))).map(drop)
    }
}

fn path(keyspace: &str) -> String {
    format!("/v1/keyspaces/{}", encode(keyspace.as_bytes()))
}
