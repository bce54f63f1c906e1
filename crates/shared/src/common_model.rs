//! Parts that all models of loom use.

use softswap_sys::process_identity::{Liveness, ProcessIdentity};

pub(crate) fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

pub(crate) fn process(pid: u32) -> ProcessIdentity {
    ProcessIdentity { pid, start: 5, namespace: 1 }
}

pub(crate) fn seven_is_dead(who: ProcessIdentity) -> Liveness {
    if who.pid == 7 { Liveness::Dead } else { Liveness::Alive }
}
