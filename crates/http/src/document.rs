//! Assembly of the OpenAPI document from two sources: the descriptions of the handlers, and the table of routes.
//!
//! Owns: adding the names, summaries and descriptions of the operations, which come from the table, and describing the
//! further paths of an operation that has several. Does not own: parameters, bodies and replies, which the handlers
//! describe.

use utoipa::{
    IntoParams as _,
    openapi::{
        Content, Info, OpenApi, PathItem, Paths, Ref, RefOr, Required, ResponseBuilder,
        path::{HttpMethod, Operation, Parameter, ParameterIn},
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};

use crate::describe::{ReadLevels, shown_header};

/// Description of the API: its purpose, and the form of bytes in JSON.
const DESCRIPTION: &str = "One durable log, read as key-value store and as streams; subjects and caches in memory. \
                           Bytes in JSON are text if they are UTF-8, or else base64 in a field of the same name with \
                           _base64.";

/// Description of the token that is required to change the cluster.
const ADMIN_TOKEN: &str = "Token that the first node of the cluster printed when it was created.";

/// Suffix of the `operationId` of an operation at a path with an empty key, which ends with a slash.
const EMPTY_KEY: &str = "_empty_key";
/// Suffix of the `operationId` of an operation at a path without a key, which takes the key as a query parameter.
const KEY_IN_QUERY: &str = "_by_query";

/// A route of the table, with the texts that describe its operation.
pub(crate) struct Documented {
    /// Path template of the route.
    pub path: &'static str,
    /// HTTP method of the route.
    pub method: &'static str,
    /// Name of the route's operation.
    pub operation: &'static str,
    /// Summary of the operation and, after an empty line, its description.
    pub text: &'static str,
    /// True if the operation reads the state, so that a request may choose the read level.
    pub reads: bool,
}

/// Assembles the OpenAPI document. An operation can have several routes. The handlers describe its first route, which
/// has the key in its path. In the description of its other routes, the key is empty or is a query parameter.
pub(crate) fn assemble(mut described: OpenApi, routes: impl Iterator<Item = Documented>) -> String {
    let mut paths = Paths::new();
    let mut previous: Option<(&str, Operation)> = None;
    for route in routes {
        let path = route.path.replace("{*", "{");
        let (method, slot) = method_of(described.paths.paths.entry(path.clone()).or_default(), route.method);
        let operation = match (slot.take(), &previous) {
            (Some(operation), _) => named(operation, &route),
            (None, Some((name, operation))) if *name == route.operation => keyless(operation.clone(), &route, &path),
            (None, _) => panic!("no handler describes {} {path}", route.method),
        };
        let mut shown = operation.clone();
        if route.reads {
            with_read_level(&mut shown);
        }
        paths.add_path_operation(path, vec![method], shown);
        previous = Some((route.operation, operation));
    }
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(ADMIN_TOKEN)).build();
    described.components.get_or_insert_default().add_security_scheme("admin_token", SecurityScheme::Http(bearer));
    let error = Content::new(Some(Ref::from_schema_name("Error")));
    let error = ResponseBuilder::new().description("The request failed.").content("application/json", error).build();
    described.components.get_or_insert_default().responses.insert("Error".to_owned(), error.into());
    described.info = Info::new("Thalweg", "1");
    described.info.description = Some(DESCRIPTION.to_owned());
    described.paths = paths;
    described.to_pretty_json().expect("the keys are text")
}

/// Adds the request headers of a read to an operation, except those that the operation has already. Adds the header
/// `Thalweg-Shown` to its successful reply.
fn with_read_level(operation: &mut Operation) {
    let parameters = operation.parameters.get_or_insert_default();
    for header in ReadLevels::into_params(|| None) {
        let is_same = |known: &RefOr<Parameter>| matches!(known, RefOr::T(known) if known.name == header.name);
        if !parameters.iter().any(is_same) {
            parameters.push(RefOr::T(header));
        }
    }
    for (status, reply) in &mut operation.responses.responses {
        if let RefOr::T(reply) = reply
            && status.starts_with('2')
        {
            reply.headers.insert("Thalweg-Shown".to_owned(), shown_header());
        }
    }
}

fn method_of<'a>(item: &'a mut PathItem, method: &str) -> (HttpMethod, &'a mut Option<Operation>) {
    match method {
        "GET" => (HttpMethod::Get, &mut item.get),
        "HEAD" => (HttpMethod::Head, &mut item.head),
        "PUT" => (HttpMethod::Put, &mut item.put),
        "POST" => (HttpMethod::Post, &mut item.post),
        "PATCH" => (HttpMethod::Patch, &mut item.patch),
        "DELETE" => (HttpMethod::Delete, &mut item.delete),
        other => panic!("the document knows no method {other}"),
    }
}

/// Adds the name, the summary, the description and the error reply to an operation. The texts come from the table of
/// routes.
fn named(mut operation: Operation, route: &Documented) -> Operation {
    let (summary, description) = route.text.split_once("\n\n").unwrap_or((route.text, ""));
    let joined = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    operation.tags = None;
    operation.operation_id = Some(route.operation.to_owned());
    operation.summary = Some(joined(summary).trim_end_matches('.').to_owned());
    operation.description = Some(joined(description)).filter(|text| !text.is_empty());
    operation.responses.responses.insert("default".to_owned(), Ref::from_response_name("Error").into());
    operation
}

/// Describes an operation at a path without the key. The `operationId` differs from that of the path with the key,
/// because generators of clients make one function for each id.
fn keyless(mut operation: Operation, route: &Documented, path: &str) -> Operation {
    let suffix = if path.ends_with('/') { EMPTY_KEY } else { KEY_IN_QUERY };
    operation.operation_id = Some(format!("{}{suffix}", route.operation));
    operation.parameters.get_or_insert_default().retain_mut(|parameter| match parameter {
        RefOr::T(key) if key.name == "key" => {
            key.parameter_in = ParameterIn::Query;
            key.required = Required::False;
            !path.ends_with('/')
        }
        _ => true,
    });
    operation
}
