//! The addresses of this host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses of all interfaces that are up in this thread's network namespace; empty if the system call fails.
pub(super) fn own() -> Vec<IpAddr> {
    let mut first = std::ptr::null_mut();
    // SAFETY: the call writes a list to `first`, or fails.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Vec::new();
    }
    let (mut found, mut next) = (Vec::new(), first);
    // SAFETY: the list lives until it is freed below; each entry is null or complete.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: as above; the address is null for an interface without one.
        let Some(address) = (unsafe { entry.ifa_addr.as_ref() }) else { continue };
        if entry.ifa_flags & libc::IFF_UP as u32 == 0 {
            continue;
        }
        match i32::from(address.sa_family) {
            libc::AF_INET => {
                // SAFETY: an address of this family has this type.
                let v4 = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
                found.push(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))));
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let v6 = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
                found.push(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)));
            }
            _ => {}
        }
    }
    // SAFETY: the list was allocated above and is freed once.
    unsafe { libc::freeifaddrs(first) };
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_one_of_them() {
        assert!(own().contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)), "{:?}", own());
    }
}
