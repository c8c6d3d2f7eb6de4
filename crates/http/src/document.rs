//! Assembly of the OpenAPI document from the operations that the handlers describe and from the table of routes.
//!
//! Owns: names, summaries and descriptions of the operations, which come from the table, and the operations of an
//! operation's further routes. Does not own: parameters, bodies and replies, which the handlers describe.

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

/// Description of the token that changes of the cluster need.
const ADMIN_TOKEN: &str = "Token that the first node of the cluster printed when it was created.";

/// End of the id of an operation at the path of the empty key.
const EMPTY_KEY: &str = "_empty_key";
/// End of the id of an operation whose key is a query parameter.
const KEY_IN_QUERY: &str = "_by_query";

/// A route of the table, with the texts that describe its operation.
pub(crate) struct Documented {
    /// Path template of the router.
    pub path: &'static str,
    /// HTTP method of the route.
    pub method: &'static str,
    /// Name of the route's operation.
    pub operation: &'static str,
    /// Summary of the operation and, after an empty line, its description.
    pub text: &'static str,
    /// True if the operation reads the state at a level that the request may state.
    pub reads: bool,
}

/// Assembles the OpenAPI document. The handlers describe each operation at the first of its routes. The further routes
/// of an operation have no key in their path: the key is empty, or is a query parameter.
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

/// Adds the headers of a read to an operation, except headers that the operation has already. Adds the header of the
/// shown revision to its successful reply.
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

/// Returns an operation without the key in its path. Its id differs from that of the operation with a key, because
/// generators of clients make one function for each id.
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
