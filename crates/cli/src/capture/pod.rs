//! The arguments that choose Kubernetes pods.

use std::path::PathBuf;

use trawl_plan::pod::PodSelector;

/// The container runtime, and the pods to query it for.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Kubernetes")]
pub(super) struct PodArgs {
    /// Capture at the host's end of these pods' interfaces: default/web-0, 'default/*', app=web,
    /// 'default/app=web,tier!=db'; may be given several times. With patterns or labels, pods that start later join
    #[arg(long = "pod", value_name = "POD", value_parser = checked, hide_short_help = true)]
    pub(super) pods: Vec<String>,
    /// The container runtime's socket [default: CONTAINER_RUNTIME_ENDPOINT, or the socket of containerd, CRI-O, k3s or
    /// cri-dockerd]
    #[arg(long, value_name = "PATH", requires = "pods", hide_short_help = true)]
    pub(super) cri_socket: Option<PathBuf>,
}

fn checked(text: &str) -> std::result::Result<String, String> {
    let parsed = PodSelector::parse(text);
    parsed.map_err(|error| {
        let how = error.how_to_fix().unwrap_or_default();
        format!("{}: {how}", error.why())
    })?;
    Ok(text.to_owned())
}
