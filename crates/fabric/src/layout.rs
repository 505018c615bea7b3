//! Compares the structures and numbers of `abi` with those of the installed header: a small C
//! program is compiled against it and prints them. Without the header there is nothing to compare.

use crate::abi::*;
use core::mem::{offset_of, size_of};
use std::fmt::Write;
use std::process::Command;

/// Compared values: C expressions, and their values in `abi`.
type Facts = Vec<(String, u64)>;

#[expect(clippy::cast_lossless, reason = "the numbers are of several types")]
fn numbers(facts: &mut Facts) {
    macro_rules! number {
        ($($c:ident $own:expr;)*) => {$( facts.push((stringify!($c).to_owned(), $own as u64)); )*};
    }
    number! {
        FI_MSG CAP_MSG; FI_RMA CAP_RMA; FI_REMOTE_COMM CAP_REMOTE_COMM; FI_READ READ;
        FI_WRITE WRITE; FI_RECV RECV; FI_TRANSMIT TRANSMIT; FI_REMOTE_READ REMOTE_READ;
        FI_REMOTE_WRITE REMOTE_WRITE; FI_DELIVERY_COMPLETE DELIVERY_COMPLETE;
        FI_COMPLETION COMPLETION;
        FI_CONTEXT MODE_CONTEXT; FI_CONTEXT2 MODE_CONTEXT2; FI_MR_LOCAL MR_LOCAL;
        FI_MR_VIRT_ADDR MR_VIRT_ADDR; FI_MR_ALLOCATED MR_ALLOCATED;
        FI_MR_PROV_KEY MR_PROV_KEY; FI_MR_ENDPOINT MR_ENDPOINT; FI_EP_RDM EP_RDM;
        FI_THREAD_DOMAIN THREAD_DOMAIN; FI_SOCKADDR FORMAT_SOCKADDR;
        FI_SOCKADDR_IN FORMAT_SOCKADDR_IN; FI_SOCKADDR_IN6 FORMAT_SOCKADDR_IN6;
        FI_WAIT_NONE WAIT_NONE; FI_WAIT_FD WAIT_FD; FI_CQ_FORMAT_CONTEXT CQ_FORMAT_CONTEXT;
        FI_GETWAIT CONTROL_GETWAIT; FI_ENABLE CONTROL_ENABLE; FI_KEY_NOTAVAIL KEY_NOTAVAIL;
        FI_EAVAIL ERROR_AVAILABLE; FI_ENOKEY ERROR_KEY;
    }
}

/// Structures that we make: the library reads all of them.
fn sizes(facts: &mut Facts) {
    macro_rules! sizes {
        ($($c:literal $type:ty;)*) => {$(
            facts.push((format!("sizeof({})", $c), size_of::<$type>() as u64));
        )*};
    }
    sizes! {
        "struct fid" Fid; "struct fi_av_attr" AvAttr; "struct fi_cq_attr" CqAttr;
        "struct fi_cq_entry" CqEntry;
        "struct iovec" Iovec; "struct fi_rma_iov" RmaIov; "struct fi_msg_rma" MsgRma;
        "struct fi_context2" [usize; CONTEXT_WORDS];
    }
    // The library writes as much as its own structure has.
    let reserved = size_of::<CqErrEntry>();
    facts.push((format!("sizeof(struct fi_cq_err_entry) <= {reserved}"), 1));
}

fn offsets(facts: &mut Facts) {
    macro_rules! offsets {
        ($($c:literal $type:ty { $($theirs:ident $own:ident),* };)*) => {$($(
            let expression = format!("offsetof({}, {})", $c, stringify!($theirs));
            facts.push((expression, offset_of!($type, $own) as u64));
        )*)*};
    }
    offsets! {
        "struct fid" Fid { ops ops };
        "struct fi_ops" FidOps { close close, bind bind, control control };
        "struct fi_tx_attr" TxAttr { op_flags op_flags, size size };
        "struct fi_ep_attr" EpAttr { type kind, max_msg_size max_msg_size };
        "struct fi_domain_attr" DomainAttr {
            name name, threading threading, mr_mode mr_mode, mr_key_size mr_key_size
        };
        "struct fi_fabric_attr" FabricAttr { prov_name prov_name };
        "struct fi_info" Info {
            next next, caps caps, mode mode, addr_format addr_format, src_addrlen src_addrlen,
            src_addr src_addr, tx_attr tx_attr, ep_attr ep_attr, domain_attr domain_attr,
            fabric_attr fabric_attr
        };
        "struct fid_fabric" FabricFid { ops ops };
        "struct fi_ops_fabric" FabricOps { domain domain, trywait trywait };
        "struct fid_domain" DomainFid { ops ops, mr mr };
        "struct fi_ops_domain" DomainOps { av_open av_open, cq_open cq_open, endpoint endpoint };
        "struct fi_ops_mr" MrOps { reg reg };
        "struct fid_mr" MrFid { mem_desc mem_desc, key key };
        "struct fi_av_attr" AvAttr {
            type kind, rx_ctx_bits rx_ctx_bits, count count, ep_per_node ep_per_node, name name,
            map_addr map_addr, flags flags
        };
        "struct fid_av" AvFid { ops ops };
        "struct fi_ops_av" AvOps { insert insert };
        "struct fi_cq_attr" CqAttr {
            size size, flags flags, format format, wait_obj wait_obj,
            signaling_vector signaling_vector, wait_cond wait_cond, wait_set wait_set
        };
        "struct fid_cq" CqFid { ops ops };
        "struct fi_ops_cq" CqOps { read read, readerr readerr };
        "struct fi_cq_err_entry" CqErrEntry {
            op_context op_context, err err, prov_errno prov_errno, err_data err_data,
            err_data_size err_data_size
        };
        "struct fid_ep" EpFid { cm cm, rma rma };
        "struct fi_ops_cm" CmOps { getname getname };
        "struct fi_ops_rma" RmaOps { readmsg readmsg, writemsg writemsg };
        "struct iovec" Iovec { iov_base base, iov_len length };
        "struct fi_rma_iov" RmaIov { addr addr, len len, key key };
        "struct fi_msg_rma" MsgRma {
            msg_iov msg_iov, desc desc, iov_count iov_count, addr addr, rma_iov rma_iov,
            rma_iov_count rma_iov_count, context context, data data
        };
    }
}

#[test]
fn structures_and_numbers_are_those_of_the_header() {
    let place = tempfile::tempdir().expect("a directory");
    let (source, program) = (place.path().join("facts.c"), place.path().join("facts"));
    let mut text = String::from("#include <stddef.h>\n#include <stdio.h>\n#include <sys/uio.h>\n");
    for header in ["fabric", "fi_domain", "fi_endpoint", "fi_rma", "fi_cm", "fi_errno"] {
        let _ = writeln!(text, "#include <rdma/{header}.h>");
    }
    std::fs::write(&source, &text).expect("written");
    let compile = |arguments: &[&str]| {
        let done = Command::new("cc").args(arguments).arg(&source).output();
        done.is_ok_and(|done| done.status.success())
    };
    if !compile(&["-E", "-o", "/dev/null"]) {
        println!("skipped: no C compiler or no libfabric header (package libfabric-dev)");
        return;
    }
    let mut facts = Facts::new();
    numbers(&mut facts);
    sizes(&mut facts);
    offsets(&mut facts);
    text.push_str("int main(void) {\n");
    for (expression, _) in &facts {
        let _ = writeln!(text, "printf(\"%llu\\n\", (unsigned long long)({expression}));");
    }
    text.push_str("}\n");
    std::fs::write(&source, &text).expect("written");
    let output = program.to_str().expect("a path of words");
    assert!(compile(&["-o", output]), "the header lacks something named here:\n{text}");
    let done = Command::new(&program).output().expect("it runs");
    let seen = String::from_utf8(done.stdout).expect("numbers");
    let seen: Vec<u64> = seen.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(seen.len(), facts.len());
    for ((expression, own), theirs) in facts.iter().zip(seen) {
        assert_eq!(*own, theirs, "{expression}");
    }
}
