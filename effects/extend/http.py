"""HTTP on the worker's event loop under one deadline, to guarded addresses.

Names without their own docstring:

    Private     which private addresses are open: all (True), none (False), or a tuple of networks
    Resolver    a function from host and port to the host's addresses
"""

from __future__ import annotations

from effects.kit import lazy

with lazy.names(__name__):
    from effects.kit.addresses import AddressRefused as AddressRefused
    from effects.kit.addresses import Private as Private
    from effects.kit.addresses import host_allowed as host_allowed
    from effects.kit.addresses import is_web_port as is_web_port
    from effects.kit.addresses import private_networks as private_networks
    from effects.kit.guarded import GuardedNetwork as GuardedNetwork
    from effects.kit.http.exchange import Exchange as Exchange
    from effects.kit.http.idle import IdleTotal as IdleTotal
    from effects.kit.http.messages import clip as clip
    from effects.kit.http.messages import verifying_context as verifying_context
    from effects.kit.http.on_loop import LoopHttpClient as LoopHttpClient
    from effects.kit.http.on_loop import LoopStream as LoopStream
    from effects.kit.http.on_loop import connect_on_loop as connect_on_loop
    from effects.kit.network import Resolver as Resolver
    from effects.kit.network import ResolverThreads as ResolverThreads
    from effects.kit.network import check_network as check_network
    from effects.kit.network import is_address as is_address
    from effects.kit.network import system_resolver as system_resolver
