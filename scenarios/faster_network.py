"""Study: does a network of 800 Gbit/s pay, instead of 400 Gbit/s?

    python scenarios/faster_network.py

Tokens of experts cross nodes here.  Traffic between nodes also crosses PCIe, so a faster NIC alone may gain little.
"""

import simcluster

SCENARIO = "mixtral_8x7b_128xh100"
ACROSS = {"parallel.order": ["tp", "cp", "pp", "dp"], "training.global_batch": 128}
NIC = {"cluster.nic.line_rate": "800 Gbit/s"}
PCIE = {"cluster.pcie.line_rate": "128 GB/s"}  # Gen6 x16


def main() -> None:
    """Print the step with a faster NIC, faster PCIe and both, and the price at which both pay."""
    job = simcluster.scenario(SCENARIO, ACROSS)
    table = simcluster.compare(
        {
            "400 Gbit/s": job,
            "800 Gbit/s": job.with_(NIC),
            "PCIe Gen6": job.with_(PCIE),
            "800 Gbit/s and PCIe Gen6": job.with_({**NIC, **PCIE}),
        }
    )
    print(table[["step_time_s", "difference", "tokens_per_s_per_gpu", "breakdown_s.exposed_ep"]].round(3).to_string())
    alone, both = -table["difference"]["800 Gbit/s"], -table["difference"].iloc[-1]
    price = both / (1 - both)  # more tokens per dollar
    print(
        f"\n800 Gbit/s alone takes {alone:.1%} off the step, and {both:.1%} with faster PCIe; it pays if both cost "
        f"less than {price:.1%} of the cluster's price."
    )


if __name__ == "__main__":
    main()
