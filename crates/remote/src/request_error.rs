//! Errors of one server for one request, and the decision to retry, redirect or fail.

use crate::secret::VARIABLE;
use crate::store::StoreError;
use crate::url::Address;
use redis::ServerError;

/// Rights of the servers' user, in the format of `ACL SETUSER`.
const RIGHTS: &str = "the user needs ~softswap:* +@read +@write +@connection +info +cluster|nodes \
                      +client +wait +asking (and +config|get for warnings)";

#[derive(Clone, Debug)]
pub(crate) enum RequestError {
    /// The server cannot be reached, or does not answer.
    Unreachable { node: Address, reason: String },
    /// The server answers but cannot serve now, for example during a failover or a slot migration.
    Busy { node: Address, reason: String },
    /// The server answers but accepts no writes, for example after a failed save.
    Unwritable { node: Address, reason: String },
    /// The server has no memory left.
    Full { node: Address },
    /// The server refuses the command; a retry does not help.
    Refused { node: Address, reason: String },
    /// Another server has the slot, permanently or for this command only.
    Moved { to: Address, only_this_time: bool },
    /// No server has the slot.
    NoOwner { slot: u16 },
}

impl RequestError {
    pub(crate) fn from_answer(node: &Address, error: &ServerError) -> Self {
        let details = error.details().unwrap_or_default();
        let reason = error_text(error);
        let node = node.clone();
        match error.code() {
            code @ ("MOVED" | "ASK") => match redirection(details, &node) {
                Some(to) => Self::Moved { to, only_this_time: code == "ASK" },
                None => Self::Refused { node, reason },
            },
            "OOM" => Self::Full { node },
            "NOAUTH" => Self::Refused {
                node,
                reason: format!(
                    "it requires a password: set {VARIABLE}, or name a file with password-file="
                ),
            },
            "NOPERM" => Self::Refused { node, reason: format!("{reason}; {RIGHTS}") },
            "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "LOADING" | "READONLY" | "BUSY"
            | "UNKILLABLE" => Self::Busy { node, reason },
            "NOREPLICAS" | "MISCONF" => Self::Unwritable { node, reason },
            _ => Self::Refused { node, reason },
        }
    }

    pub(crate) fn node(&self) -> String {
        match self {
            Self::Unreachable { node, .. }
            | Self::Busy { node, .. }
            | Self::Unwritable { node, .. }
            | Self::Full { node }
            | Self::Refused { node, .. }
            | Self::Moved { to: node, .. } => node.to_string(),
            Self::NoOwner { slot } => format!("the owner of slot {slot}"),
        }
    }

    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Unreachable { reason, .. }
            | Self::Busy { reason, .. }
            | Self::Unwritable { reason, .. }
            | Self::Refused { reason, .. } => reason.clone(),
            Self::Full { .. } => "no memory is free".into(),
            Self::Moved { to, .. } => format!("the slot is being moved to {to}"),
            Self::NoOwner { slot } => format!("no server has slot {slot}"),
        }
    }

    pub(crate) fn final_error(&self) -> Option<StoreError> {
        match self {
            Self::Full { node } => Some(StoreError::Full { node: node.to_string() }),
            Self::Refused { node, reason } => {
                Some(StoreError::Refused { node: node.to_string(), reason: reason.clone() })
            }
            _ => None,
        }
    }
}

/// Reason why a write does not count although the server answered it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unwritten {
    #[error("no replica confirmed the write (wait=1)")]
    NoReplica,
    #[error(
        "the server no longer has the rest of this extent (SETRANGE returned a shorter length)"
    )]
    Gone,
    #[error("the server's answer to SETRANGE cannot be parsed")]
    Unparsable,
}

/// Omits the repeated arguments, which may include a password.
pub(crate) fn error_text(error: &ServerError) -> String {
    let details = error.details().unwrap_or_default();
    let details = details.split_once(", with args ").map_or(details, |(details, _)| details);
    format!("{} {details}", error.code())
}

/// Parses `SLOT HOST:PORT`. An empty host means the host of `asked`.
fn redirection(details: &str, asked: &Address) -> Option<Address> {
    let (host, port) = details.split_ascii_whitespace().nth(1)?.rsplit_once(':')?;
    let host = if host.is_empty() { &asked.host } else { host };
    Some(Address { host: host.to_string(), port: port.parse().ok()? })
}
