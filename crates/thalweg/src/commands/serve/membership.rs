//! The decision of `serve` to open a data directory alone, or as a member of a cluster.
//!
//! Owns: the credentials in the directory, and the choice of the member's identity from the configuration. Does not
//! own: consensus, and the checks of the identity against the directory's contents. The engine makes these checks.
//!
//! | configuration | directory with credentials | directory without |
//! |---|---|---|
//! | no `cluster` | refused, or alone if the directory has not become a member | alone |
//! | `cluster` | the member that it is | refused: found or join? |
//! | `cluster`, `cluster_init` | the member that it is | founds a cluster |
//! | `cluster`, `join` | the member that it is | joins with the token |
//! | `cluster`, `join`, `expect` | the member that it is | joins with the token the cluster that the nodes found together |
//!
//! Invariants: the credentials are durable before the directory is first opened as a member. If a start ends between
//! these two steps, the next start makes the same decision again. If the checks show that the directory cannot be
//! opened in the decided role, no credentials are written. A directory of a single node can have credentials from a
//! start that then could not open it. It still counts as a directory of a single node.

use std::path::Path;

use thalweg_cluster::{NodeOptions, PeerTls, Secret};
use thalweg_engine::{Database, MemberIdentity};
use thalweg_server::{
    cluster::{AdminToken, CREDENTIALS_FILE, Credentials, ElapsedMillis, Triggers},
    config::{Advertise, Config},
};
use thalweg_types::NodeId;

use super::link_tls;
use crate::failure::{Exit, Failure};

/// Role in which a data directory is opened.
#[derive(Debug)]
pub(super) enum OpenRole {
    /// The node runs alone.
    Alone,
    /// The node is a member of a cluster.
    Member(Box<MemberPart>),
}

impl OpenRole {
    /// Returns the data of a member; `None` for a node that runs alone.
    pub(super) fn member(&self) -> Option<&MemberPart> {
        match self {
            Self::Alone => None,
            Self::Member(part) => Some(part),
        }
    }
}

/// Data with which a node takes part in a cluster: its identity and its credentials.
#[derive(Debug)]
pub(super) struct MemberPart {
    /// Identity of the member, and the way in which the directory becomes a member if it is none yet.
    pub identity: MemberIdentity,
    /// Credentials of the cluster, such as its id and its secret.
    pub credentials: Credentials,
    /// Admin token, if this start creates the cluster; otherwise `None`. It is shown only once.
    pub admin: Option<AdminToken>,
    /// TLS of the links to other nodes; `None` for plain TCP. Its files are read before anything is written. So a wrong
    /// file leaves neither a new directory nor an admin token, which is shown only once.
    pub links: Option<PeerTls>,
    /// True if the credentials of the cluster are not in the directory yet.
    pub is_new: bool,
}

/// Decides the role in which a directory is opened.
pub(super) fn decide(config: &Config) -> Result<OpenRole, Failure> {
    let dir = &config.data;
    let stored = Credentials::of_directory(dir).map_err(|error| Failure::of(&error))?;
    let shown = dir.display();
    if config.cluster.address().is_none() {
        let Some(stored) = stored else { return Ok(OpenRole::Alone) };
        // An earlier start stored the credentials but could not open the directory as a member, for example because a
        // server was using it.
        if Database::is_of_single_node(dir).map_err(|error| Failure::of(&error))? {
            return Ok(OpenRole::Alone);
        }
        let message = format!("{shown} belongs to cluster {}", stored.cluster);
        return Err(Failure::new(Exit::Usage, "is_member", message).then(format!(
            "start it with --cluster ADDRESS; if a majority of the members is lost for good, docs/guides/cluster.md has the \
             steps, which begin with a backup of {shown}"
        )));
    }
    let joins = !config.join.0.is_empty();
    if let Some(credentials) = stored {
        let identity = identity(config, &credentials, joins);
        let links = link_tls::of(config)?;
        return Ok(OpenRole::Member(Box::new(MemberPart { identity, credentials, admin: None, links, is_new: false })));
    }
    let given = config.join_token.reveal().map(Credentials::parse).transpose().map_err(|error| Failure::of(&error))?;
    let (credentials, admin) = match given {
        Some(credentials) if config.cluster_init || joins => (credentials, None),
        None if config.cluster_init => {
            let (credentials, admin) = Credentials::random().map_err(|error| Failure::of(&error))?;
            (credentials, Some(admin))
        }
        None if joins => {
            let message = format!("{shown} can't join without a join token");
            return Err(Failure::new(Exit::Usage, "no_join_token", message).then(
                "set THALWEG_JOIN_TOKEN to what `thalweg cluster join-token` prints on a member; for nodes that found a \
                 cluster together, `thalweg cluster create-token` makes one",
            ));
        }
        _ => {
            let message = format!("{shown} is in no cluster yet");
            return Err(Failure::new(Exit::Usage, "not_clustered", message)
                .then("create a cluster with --cluster-init, or join one with --join ADDRESS and a token"));
        }
    };
    let (identity, links) = (identity(config, &credentials, joins), link_tls::of(config)?);
    Ok(OpenRole::Member(Box::new(MemberPart { identity, credentials, admin, links, is_new: true })))
}

/// Returns the cluster member's identity with which the directory is opened.
fn identity(config: &Config, credentials: &Credentials, joins: bool) -> MemberIdentity {
    match (config.cluster_init, joins) {
        (true, _) => MemberIdentity::Found,
        (false, true) => MemberIdentity::Join { cluster: credentials.cluster },
        (false, false) => MemberIdentity::Existing,
    }
}

/// Checks that the directory can be opened in this role (alone, or as a member of a cluster). So a start that is
/// rejected has written nothing. This matters because a directory with credentials can no longer be opened alone.
pub(super) fn check_directory(role: &OpenRole, dir: &Path) -> Result<(), Failure> {
    let new = role.member().filter(|part| part.is_new);
    let new = new.map(|part| (part.identity, part.credentials.cluster));
    thalweg_engine::check_directory(dir, new).map_err(|error| Failure::of(&error))
}

/// Makes the credentials of a cluster member durable in its directory, before the directory is first opened. The
/// directory is locked only when it is opened, so two starts can reach this point at the same time. The second one is
/// then rejected.
pub(super) fn keep(part: &MemberPart, dir: &Path) -> Result<(), Failure> {
    if part.is_new {
        std::fs::create_dir_all(dir).map_err(|error| Failure::file(dir, &error))?;
        part.credentials.write_new(dir).map_err(|error| Failure::of(&error))?;
    }
    Ok(())
}

/// Removes the credentials that this start has written to the directory of a single node, after it could not open the
/// directory (for example because it has data, or is in use). Otherwise a later start with `cluster_init` would found a
/// second cluster, with the id and the secret of the cluster that this start should join. Removes only credentials from
/// a token that the user gave. Those that this start has created are kept, because their admin token was already shown.
pub(super) fn take_back(role: &OpenRole, dir: &Path) {
    let is_given = role.member().is_some_and(|part| part.is_new && part.admin.is_none());
    if is_given
        && Database::is_of_single_node(dir).unwrap_or(false)
        && let Err(error) = std::fs::remove_file(dir.join(CREDENTIALS_FILE))
    {
        tracing::warn!(%error, "cannot remove {CREDENTIALS_FILE}: remove it before the directory creates a cluster");
    }
}

/// Checks that the opened directory belongs to the cluster of its credentials.
pub(super) fn check(part: &MemberPart, database: &Database) -> Result<(), Failure> {
    let (found, wanted) = (database.report().cluster, part.credentials.cluster);
    if found == Some(wanted) {
        return Ok(());
    }
    let found = found.map_or("no cluster".to_owned(), |cluster| format!("cluster {cluster}"));
    let message = format!("the directory belongs to {found}, and its credentials to cluster {wanted}");
    Err(Failure::new(Exit::Usage, "other_cluster", message)
        .then(format!("copy the file {CREDENTIALS_FILE} from another member of the directory's cluster")))
}

/// Returns the options of the node's consensus and links; `None` if the configuration has no address for other nodes.
pub(super) fn node_options(config: &Config, part: &MemberPart, node: NodeId) -> Option<NodeOptions> {
    let listen = config.cluster.address()?;
    let advertise = match &config.advertise {
        Advertise::Listening => String::new(),
        Advertise::At(address) => address.to_string(),
    };
    let (heartbeat, suspect_after) = (config.cluster_heartbeat.0, config.cluster_suspect_after.0);
    let mut options = NodeOptions::new(listen, Secret::new(part.credentials.secret()));
    options.consensus.max_in_flight_bytes = config.cluster_in_flight_bytes();
    options.consensus.max_outcome_bytes = usize::try_from(config.cluster_outcome_bytes()).unwrap_or(usize::MAX);
    Some(NodeOptions {
        advertise,
        name: if config.node_name.0.is_empty() { format!("{:016x}", node.0) } else { config.node_name.0.clone() },
        zone: config.zone.0.clone(),
        join: config.join.0.iter().map(ToString::to_string).collect(),
        expect: config.expect as usize,
        tls: part.links.clone(),
        repairs_itself: config.cluster_repair,
        digest_every: config.scrub_interval.0,
        triggers: Triggers {
            lag_entries: config.cluster_lag_entries.into(),
            lag_bytes: config.cluster_lag_bytes.0,
            stale_after: ElapsedMillis(u64::try_from(config.cluster_stale_after.0.as_millis()).unwrap_or(u64::MAX)),
        },
        ..options.with_timing(heartbeat, suspect_after, config.cluster_down_after.0)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use thalweg_server::config::{ConfigLayer, Layers};

    use super::*;

    fn config(dir: &Path, given: &[(&str, &str)]) -> Config {
        let mut layer = ConfigLayer::default();
        layer.set("data", dir.to_str().unwrap()).unwrap();
        given.iter().for_each(|(name, text)| layer.set(name, text).unwrap());
        Layers::new().flags(layer).resolve().unwrap().config
    }

    const ADDRESS: (&str, &str) = ("cluster", "127.0.0.1:7072");

    fn member(config: &Config) -> MemberPart {
        match decide(config).unwrap() {
            OpenRole::Member(part) => *part,
            OpenRole::Alone => panic!("it is a member"),
        }
    }

    #[test]
    fn a_founder_gets_its_admin_token_once() {
        let dir = tempfile::tempdir().unwrap();
        let founding = config(dir.path(), &[ADDRESS, ("cluster_init", "true")]);
        let part = member(&founding);
        assert_eq!((part.identity, part.is_new), (MemberIdentity::Found, true));
        let admin = part.admin.as_ref().expect("a token");
        assert!(part.credentials.permits(admin.reveal().as_bytes()));
        keep(&part, dir.path()).unwrap();
        let again = member(&founding);
        assert_eq!((again.identity, again.is_new), (MemberIdentity::Found, false));
        assert!(again.admin.is_none() && again.credentials == part.credentials);
        assert_eq!(member(&config(dir.path(), &[ADDRESS])).identity, MemberIdentity::Existing);
        let refused = decide(&config(dir.path(), &[])).unwrap_err();
        assert_eq!(refused.code, "is_member", "a member is not opened alone by a slip");
    }

    /// If both starts succeeded, the first node would run with a secret that the directory does not have. The admin
    /// token that it has shown would then be useless.
    #[test]
    fn of_two_first_starts_at_the_same_time_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let founding = config(dir.path(), &[ADDRESS, ("cluster_init", "true")]);
        let (first, second) = (member(&founding), member(&founding));
        keep(&first, dir.path()).unwrap();
        let refused = keep(&second, dir.path()).unwrap_err();
        assert!(refused.code == "credentials_file" && refused.message.contains("another start"), "{}", refused.message);
        let stored = member(&founding);
        assert!(!stored.is_new && stored.credentials == first.credentials);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no unfinished file is left");
    }

    #[test]
    fn the_default_times_are_those_of_the_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let part = member(&config(dir.path(), &[ADDRESS, ("cluster_init", "true")]));
        let options = |given: &[(&str, &str)]| {
            node_options(&config(dir.path(), given), &part, NodeId(7)).expect("it has an address")
        };
        let (set, default) =
            (options(&[ADDRESS]), NodeOptions::new(([127, 0, 0, 1], 7072).into(), Secret::new(&[7; 32])));
        assert_eq!(
            (set.consensus, set.detector, set.triggers, set.digest_every),
            (default.consensus, default.detector, default.triggers, default.digest_every)
        );
        let slow = options(&[
            ADDRESS,
            ("cluster_heartbeat", "5s"),
            ("cluster_suspect_after", "10s"),
            ("cluster_down_after", "15s"),
        ]);
        assert_eq!(slow.consensus.heartbeat, Duration::from_secs(5));
        assert_eq!(slow.detector.down_after, Duration::from_secs(15));
        let lags = options(&[
            ADDRESS,
            ("cluster_lag_entries", "7"),
            ("cluster_lag_bytes", "1MiB"),
            ("cluster_stale_after", "90s"),
            ("scrub_interval", "0s"),
        ]);
        let triggers = Triggers { lag_entries: 7, lag_bytes: 1 << 20, stale_after: ElapsedMillis(90_000) };
        assert_eq!((lags.triggers, lags.digest_every), (triggers, Duration::ZERO));
    }

    #[test]
    fn a_joining_node_needs_a_token_and_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        let (credentials, _) = Credentials::random().unwrap();
        let (token, cluster) = (credentials.join_token(), credentials.cluster);
        let join = ("join", "127.0.0.1:1");
        assert_eq!(decide(&config(dir.path(), &[ADDRESS])).unwrap_err().code, "not_clustered");
        assert_eq!(decide(&config(dir.path(), &[ADDRESS, join])).unwrap_err().code, "no_join_token");
        let wrong = decide(&config(dir.path(), &[ADDRESS, join, ("join_token", "x")])).unwrap_err();
        assert_eq!(wrong.code, "bad_join_token");
        let part = member(&config(dir.path(), &[ADDRESS, join, ("join_token", &token)]));
        assert_eq!(part.identity, MemberIdentity::Join { cluster });
        keep(&part, dir.path()).unwrap();
        let later = member(&config(dir.path(), &[ADDRESS, join]));
        assert_eq!((later.identity, later.is_new), (MemberIdentity::Join { cluster }, false));
        assert!(matches!(decide(&config(Path::new("/nowhere"), &[])).unwrap(), OpenRole::Alone));
    }
}
